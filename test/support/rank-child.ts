/**
 * A rank other than 0, for tests: node --import jiti/register rank-child.ts, with the variables of
 * a rank.
 */

import { joinRanks } from "../../lib/ranks/join.ts";
import { rankPlace } from "../../lib/ranks/place.ts";
import { serveRank } from "../../lib/ranks/serve-rank.ts";

try {
  await serveRank(await joinRanks(rankPlace()!, "cpu"));
} catch (error) {
  const { code, message } = error as { code?: string; message: string };
  process.stderr.write(`${code}: ${message}\n`);
  process.exit(1);
}
