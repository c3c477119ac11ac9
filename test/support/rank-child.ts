/**
 * Ranks other than 0, for tests: node --import jiti/register rank-child.ts. With the variables of a
 * rank it serves as that rank. Without them it reads places as JSON from stdin, a line each, and
 * serves as one after the other, so that a test with many learners starts few processes.
 */

import { createInterface } from "node:readline";
import { joinRanks } from "../../lib/ranks/join.ts";
import { type RankPlace, rankPlace } from "../../lib/ranks/place.ts";
import { serveRank } from "../../lib/ranks/serve-rank.ts";

async function serve(place: RankPlace): Promise<void> {
  const ranks = await joinRanks(place, "cpu");
  await serveRank(ranks);
  await ranks.native.dispose();
}

try {
  const place = rankPlace();
  if (place !== undefined) await serve(place);
  else for await (const line of createInterface({ input: process.stdin })) await serve(JSON.parse(line));
} catch (error) {
  const { code, message } = error as { code?: string; message: string };
  process.stderr.write(`${code}: ${message}\n`);
  process.exit(1);
}
