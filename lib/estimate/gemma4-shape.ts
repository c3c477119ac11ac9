/** What differs between the layers of Gemma 4, read from its config.json as the core reads it. */

import type { LayerAttention, ModelShape } from "./model-shape.ts";

type Config = Readonly<Record<string, unknown>>;

/** Parts of the shape of Gemma 4's text model. `whole` reads a positive whole number by its key. */
export function gemma4Layers(
  config: Config,
  whole: (key: string, otherwise?: number) => number,
): Pick<
  ModelShape,
  "attention" | "intermediates" | "layerInputs" | "layerScalars" | "windows" | "experts" | "norms"
> {
  const layers = whole("num_hidden_layers");
  const isFull = layerTypes(config, layers);
  const headDim = whole("head_dim");
  const kvHeads = whole("num_key_value_heads");
  const valuesFromKeys = config.attention_k_eq_v === true;
  const full = fullHeads(config, { headDim, kvHeads }, valuesFromKeys);
  const borrowing = Number(config.num_kv_shared_layers ?? 0);
  const attention = isFull.map((wide, l): LayerAttention => {
    const keys = l < layers - borrowing;
    return {
      headDim: wide ? full.headDim : headDim,
      kvHeads: wide ? full.kvHeads : kvHeads,
      ...{ keys, values: keys && !(wide && valuesFromKeys) },
    };
  });
  const width = whole("intermediate_size");
  const size = Number(config.hidden_size_per_layer_input ?? 256);
  return {
    attention,
    intermediates: attention.map(
      ({ keys }) => (config.use_double_wide_mlp === true && !keys ? 2 : 1) * width,
    ),
    layerScalars: true,
    windows: isFull.filter((wide) => !wide).map(() => whole("sliding_window", 512)),
    ...(config.enable_moe_block === true && {
      norms: 7,
      experts: {
        ...{ layers, count: whole("num_experts"), perToken: whole("top_k_experts") },
        ...{ intermediate: whole("moe_intermediate_size"), shared: 0, beside: true },
      },
    }),
    ...(size > 0 && { layerInputs: { size, vocabulary: whole("vocab_size_per_layer_input", 262_144) } }),
  };
}

/** Whether each layer has full attention. The last one always has. */
function layerTypes(config: Config, layers: number): boolean[] {
  const types = config.layer_types;
  return Array.from({ length: layers }, (_, l) => {
    const given = Array.isArray(types) ? types[l] === "full_attention" : (l + 1) % 6 === 0;
    return given || l === layers - 1;
  });
}

type Heads = Pick<LayerAttention, "headDim" | "kvHeads">;

/** The heads of full attention: transformers 5.24 writes them for each layer, published files once. */
function fullHeads(config: Config, { headDim, kvHeads }: Heads, valuesFromKeys: boolean): Heads {
  const layers = config.per_layer_config as Record<string, Record<string, number>> | undefined;
  if (layers !== undefined) {
    const last = Object.entries(layers).reduce(
      (found, one) => (Number(one[0]) > Number(found[0]) ? one : found),
      ["-1", {}],
    )[1];
    return { headDim: last.head_dim ?? headDim, kvHeads: last.num_key_value_heads ?? kvHeads };
  }
  const given = config.num_global_key_value_heads;
  return {
    headDim: Number(config.global_head_dim ?? 512),
    kvHeads: valuesFromKeys && typeof given === "number" ? given : kvHeads,
  };
}
