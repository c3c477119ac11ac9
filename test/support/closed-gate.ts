import type { ScriptedModel } from "./scripted-model.ts";

/** Delays the model's generations until it is opened; counts the waiting ones. */
export function closedGate(model: ScriptedModel): { readonly waiting: number; open: () => void } {
  let waiting = 0;
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  const generate = model.generate.bind(model);
  model.generate = async (...asked) => {
    waiting++;
    await opened;
    return generate(...asked);
  };
  return {
    get waiting() {
      return waiting;
    },
    open,
  };
}
