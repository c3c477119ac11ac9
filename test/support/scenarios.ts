/** Synthetic scenarios of a small shop. */

import { beforeAll } from "vitest";
import {
  type SynthesizeRetailOptions,
  synthesizeRetail,
} from "../../lib/environments/tau-bench/synthesize.ts";
import { type TauShop, writeTauShop } from "./tau-shop.ts";

export let shop: TauShop;

beforeAll(() => {
  shop = writeTauShop();
});

export const synthesize = (options: Partial<SynthesizeRetailOptions> = {}) =>
  synthesizeRetail({ data: shop.data, train: 60, test: 20, questions: 0.5, ...options });
