/**
 * The paper's game: of the 1,823 objects of THINGS, 1,000 words for training and 500 for testing,
 * with GPT-4.1 as oracle and judge. The words are read from `$NLAC_DATA/dialogue/things_1823.txt`,
 * one per line. Without this file nlac's own word table is used.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";

const data = process.env.NLAC_DATA;
const hasThings = data !== undefined && existsSync(join(data, "dialogue", "things_1823.txt"));

export const environment = {
  name: "twentyQuestions",
  options: {
    oracle: { model: "gpt-4.1" },
    turns: 20,
    revealAtEnd: false,
    words: hasThings ? "things" : "table",
  },
};
