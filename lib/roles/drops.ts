/** Why a text is not trained on, and how training counts it. */

export const dropCauses = [
  /** The model's context had no room for what was to be read or trained on. */
  "context",
  /** It was as long as the configuration allows, or as the context, and not finished. */
  "cut_off",
  /** It could not be read in the form that was asked for. */
  "unreadable",
  /** The rewritten thought could not be read. */
  "correction",
  /** Its critique did not say Yes, where approval decides. */
  "not_approved",
] as const;

export type DropCause = (typeof dropCauses)[number];

/** How many were dropped, in all and by cause. */
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
