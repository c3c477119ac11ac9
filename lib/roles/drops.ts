/** The causes for which a completion is not trained on, and how training counts them. */

export const dropCauses = [
  /** The model's context had no room for the prompt or for the training sequence. */
  "context",
  /** Truncated at the configured length or the context. */
  "cut_off",
  /** Could not be parsed in the requested form. */
  "unreadable",
  /** The rewritten thought could not be parsed. */
  "correction",
  /** Its critique did not say Yes, with `refinementsKept: "approved"`. */
  "not_approved",
] as const;

export type DropCause = (typeof dropCauses)[number];

/** How many were dropped, in total and by cause. */
export function dropMetrics(name: string, texts: readonly { dropped?: DropCause }[]): Record<string, number> {
  const metrics: Record<string, number> = {
    [`${name}/dropped`]: texts.filter(({ dropped }) => dropped !== undefined).length,
  };
  for (const cause of dropCauses) {
    const count = texts.filter(({ dropped }) => dropped === cause).length;
    if (count > 0) metrics[`${name}/dropped_${cause}`] = count;
  }
  return metrics;
}
