/**
 * The paper's customer service task: separate retail scenarios for training and testing, with
 * GPT-4.1 as the customers. The paper's 2,500 and 500 scenarios were not published; `nlac data
 * synthesize tau-bench-retail --out $NLAC_DATA/tau-bench/retail-tasks` makes as many. Without these
 * files the benchmark's own 500 and 115 are used.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";

const made = resolve(process.env.NLAC_DATA ?? ".", "tau-bench", "retail-tasks");

export const environment = {
  name: "tauBench",
  options: {
    domain: "retail",
    user: { model: "gpt-4.1" },
    ...(existsSync(made) ? { train: `${made}/tasks_train.json`, test: `${made}/tasks_test.json` } : {}),
  },
};
