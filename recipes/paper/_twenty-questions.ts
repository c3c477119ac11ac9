/**
 * The paper's game: 1,000 words to train on and 500 others to test on, of the 1,823 objects of THINGS, and GPT-4.1 for the
 * oracle and the judge. The words are read from `$NLAC_DATA/dialogue/things_1823.txt`, one a line; where that is missing,
 * the words of nlac's own table take their place.
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
