/** Parameter shapes of real models. */

interface Decoder {
  width: number;
  layers: number;
  intermediate: number;
  /** Rows of the key and value matrices. */
  keyValueWidth: number;
  vocabulary: number;
  /** Whether queries, keys and values have biases. */
  bias: boolean;
  /** Whether embedding and vocabulary matrix are one. */
  tied: boolean;
}

const decoders = {
  "SmolLM2-135M": {
    ...{ width: 576, layers: 30, intermediate: 1536, keyValueWidth: 192, vocabulary: 49152 },
    ...{ bias: false, tied: true },
  },
  "Qwen2.5-3B": {
    ...{ width: 2048, layers: 36, intermediate: 11008, keyValueWidth: 256, vocabulary: 151936 },
    ...{ bias: true, tied: true },
  },
  "Qwen2.5-7B": {
    ...{ width: 3584, layers: 28, intermediate: 18944, keyValueWidth: 512, vocabulary: 152064 },
    ...{ bias: true, tied: false },
  },
} satisfies Record<string, Decoder>;

export type ModelName = keyof typeof decoders;

/** Shapes of the parameters, with at most `layers` layers. */
export function modelShapes(name: ModelName, layers = Number.POSITIVE_INFINITY): number[][] {
  const { width, intermediate, keyValueWidth, vocabulary, bias, tied, ...model } = decoders[name];
  const layer = [
    [width],
    [width, width],
    [keyValueWidth, width],
    [keyValueWidth, width],
    ...(bias ? [[width], [keyValueWidth], [keyValueWidth]] : []),
    [width, width],
    [width],
    [intermediate, width],
    [intermediate, width],
    [width, intermediate],
  ];
  return [
    [vocabulary, width],
    ...Array.from({ length: Math.min(layers, model.layers) }, () => layer).flat(),
    [width],
    ...(tied ? [] : [[vocabulary, width]]),
  ];
}

export function countElements(shapes: readonly (readonly number[])[]): number {
  return shapes.reduce((sum, shape) => sum + shape.reduce((product, size) => product * size, 1), 0);
}
