/** Places of deleted episodes in a recording. */

import type { EpisodeRecord } from "../episodes/records.ts";

/** What remains of a deleted episode: an episode that could not begin. */
function deletedRecord({ id, group, split }: EpisodeRecord): EpisodeRecord {
  return {
    // The group and the split stay, so that the other episodes are treated as before.
    ...(group === undefined ? {} : { group }),
    ...(split === undefined ? {} : { split }),
    ...{ id, task: "", seed: 0, outcome: "environment-fault", reward: 0, turns: [] },
    fault: { code: "ERR_RUN", message: deletedMessage },
    // A conversation has one token at least.
    conversation: {
      ...{ version: 1, tokens: [0], segments: [{ source: "environment", start: 0, end: 1 }] },
      ...{ turns: [{ end: 1, role: "user" }], system: false },
    },
  };
}

/** The records, with only the places of the deleted ones. */
export function* withPlacesOf(
  records: Iterable<EpisodeRecord>,
  isDeleted: (record: EpisodeRecord) => boolean,
): Generator<EpisodeRecord> {
  for (const record of records) yield isDeleted(record) ? deletedRecord(record) : record;
}

const deletedMessage = "The episode was deleted.";

export function isDeleted({ fault }: EpisodeRecord): boolean {
  return fault?.message === deletedMessage;
}
