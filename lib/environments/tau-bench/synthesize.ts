/**
 * Generates scenarios for the retail domain from its records: a customer, changes to that
 * customer's orders that the records and the policy allow, the calls that carry them out, and an
 * instruction. They stand in for the 2,500 + 500 retail scenarios of the NLAC paper, which were not
 * published.
 *
 * Training and test scenarios have no customer in common. Every scenario is checked
 * (scenario-check.ts); one that fails, or repeats the changes of an earlier one, is drawn again.
 * Unless a language model rewords the instructions, the result is a function of the data and the
 * options.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { derivedSeed, permutation, streams } from "../../base/random.ts";
import { checkConfig } from "../../base/validation.ts";
import type { ChatService } from "../../services/chat-service.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import { openServiceOption } from "../open-service-option.ts";
import { type Domain, openDomain } from "./domain.ts";
import { Draws } from "./draws.ts";
import { defaultData } from "./environment.ts";
import { type Instruction, writeInstruction } from "./instruction.ts";
import { rewriteInstruction } from "./rewrite.ts";
import { type Fault, scenarioFault } from "./scenario-check.ts";
import { type Customer, readShop, type Shop } from "./shop.ts";
import { type Call, callsOf, drawWishes, openOrders } from "./wishes.ts";

/** Options of `synthesizeRetail`. */
export interface SynthesizeRetailOptions {
  /**
   * The directory of tau-bench's data, with the domain in `retail`. Default `$NLAC_DATA/tau-bench`.
   */
  data?: string;
  /** Number of training scenarios. Default 2500, the paper's. */
  train?: number;
  /** Number of test scenarios. Default 500, the paper's. */
  test?: number;
  /** Default 0. */
  seed?: number;
  /**
   * Share of the scenarios in which the customer also asks a question that must be answered.
   * Default 0.2.
   */
  questions?: number;
  /**
   * Customers excluded from training, such as those of the tasks that a policy will be tested on.
   * Default none.
   */
  heldOut?: readonly string[];
  /** Service that rewords the instructions. Default: none. */
  rewrite?: ServiceSource;
  signal?: AbortSignal;
  /** Called while instructions are reworded. */
  onProgress?: (rewritten: number, of: number) => void;
}

const optionsSchema = z.strictObject({
  data: z.string().optional(),
  train: z.int().min(0).default(2500),
  test: z.int().min(0).default(500),
  seed: z.int().min(0).default(0),
  questions: z.number().min(0).max(1).default(0.2),
  heldOut: z.array(z.string()).default([]),
  rewrite: z.custom<ServiceSource>().optional(),
  signal: z.instanceof(AbortSignal).optional(),
  onProgress: z.custom<SynthesizeRetailOptions["onProgress"]>().optional(),
});

/** A task in the format of tau-bench's own files. */
export interface TauBenchTaskRecord {
  index: number;
  annotator: "synthetic";
  user_id: string;
  instruction: string;
  actions: { name: string; kwargs: Record<string, unknown> }[];
  outputs: string[];
}

/**
 * Why a draw is rejected: it contradicts the records, it repeats an earlier one, or it fails a
 * check.
 */
type Rejection = "does not fit the records" | "is a duplicate" | Fault;

type Tally = { drawn: number; rejected: Record<Rejection, number> };

/** Result of `synthesizeRetail`. */
export interface RetailSynthesis {
  train: TauBenchTaskRecord[];
  test: TauBenchTaskRecord[];
  /** Number of scenarios drawn. */
  drawn: number;
  /** Number of rejected scenarios by reason. */
  rejected: Record<string, number>;
  /** Number of instructions reworded by `rewrite`. */
  rewritten: number;
}

/** Most draws per wanted scenario. */
const maxDraws = 100;

/** Most concurrent requests for rewording. */
const rewritesAtOnce = 16;

/**
 * Generates scenarios.
 *
 * @throws NlacError ERR_CONFIG for unusable options or data, ERR_VALUE if the data does not yield
 *   enough different scenarios, ERR_SERVICE and ERR_ABORTED
 */
export async function synthesizeRetail(options: SynthesizeRetailOptions = {}): Promise<RetailSynthesis> {
  const { data, train, test, seed, questions, heldOut, rewrite, signal, onProgress } = checkConfig(
    optionsSchema,
    options,
  );
  const domain = openDomain("retail", data ?? defaultData());
  const shop = readShop(domain.directory);
  const source: Source = { shop, domain, questions, signal };
  const customers = splitCustomers(shop, { train, test, heldOut, seed });
  const tally = newTally();
  const draw = (split: "train" | "test", count: number) => {
    const ownSeed = derivedSeed(seed, streams.scenario, split === "train" ? 0 : 1);
    return drawScenarios(count, customers[split], ownSeed, source, tally);
  };
  const drafts = { train: draw("train", train), test: draw("test", test) };
  let rewritten = 0;
  if (rewrite !== undefined) {
    const service = openServiceOption("rewrite", rewrite);
    try {
      const all = [...drafts.train, ...drafts.test];
      rewritten = await rewriteAll(all, service, { seed, signal, onProgress });
    } finally {
      await service.close?.();
    }
  }
  return { train: drafts.train.map(toRecord), test: drafts.test.map(toRecord), ...tally, rewritten };
}

/** A scenario before it is assigned its id. */
interface Draft {
  userId: string;
  instruction: Instruction;
  calls: Call[];
  outputs: string[];
}

/** What scenarios are drawn from. */
interface Source {
  shop: Shop;
  domain: Domain;
  questions: number;
  signal: AbortSignal | undefined;
}

function newTally(): Tally {
  return {
    drawn: 0,
    rejected: {
      "does not fit the records": 0,
      "is a duplicate": 0,
      "breaks the policy": 0,
      "cannot be done": 0,
      "does more than is needed": 0,
      "depends on the order": 0,
    },
  };
}

/**
 * Splits the customers with orders that can be changed; the test split's share is that of its
 * scenarios. Held-out customers are all in the test split, never in training.
 */
function splitCustomers(
  shop: Shop,
  { train, test, heldOut, seed }: { train: number; test: number; heldOut: readonly string[]; seed: number },
): { train: Customer[]; test: Customer[] } {
  const all = [...shop.customers.values()].filter((customer) => openOrders(shop, customer).length > 0);
  const order = permutation(all.length, seed, streams.split).map((i) => all[i]!);
  const out = new Set(heldOut);
  const sorted = [...order.filter(({ id }) => out.has(id)), ...order.filter(({ id }) => !out.has(id))];
  const share = Math.round((all.length * test) / (train + test));
  const forTest = test === 0 ? 0 : Math.max(1, share);
  return {
    train: sorted.slice(forTest).filter(({ id }) => !out.has(id)),
    test: sorted.slice(0, Math.max(forTest, order.filter(({ id }) => out.has(id)).length)),
  };
}

/**
 * Draws `count` different scenarios that pass every check, cycling through the customers: each
 * occurs once per open order.
 */
function drawScenarios(
  count: number,
  customers: readonly Customer[],
  seed: number,
  { shop, domain, questions, signal }: Source,
  tally: Tally,
): Draft[] {
  const turns = customers.flatMap((customer) => openOrders(shop, customer).map(() => customer));
  const drafts = new Map<string, Draft>();
  for (let i = 0; drafts.size < count; i++) {
    throwIfAborted(signal);
    if (customers.length === 0 || i === maxDraws * count) {
      throw new NlacError(
        "ERR_VALUE",
        `${customers.length} customers gave ${drafts.size} of ${count} different scenarios. Ask for fewer.`,
      );
    }
    tally.drawn++;
    const draws = new Draws(derivedSeed(seed, streams.scenario, i));
    const wishes = drawWishes(shop, turns[i % turns.length]!, draws, questions);
    if (wishes === undefined) {
      tally.rejected["does not fit the records"]++;
      continue;
    }
    const userId = wishes.customer.id;
    const calls = callsOf(wishes);
    // The same changes in another order are the same scenario.
    const key = JSON.stringify(calls.map((call) => JSON.stringify(call)).sort());
    const rejection = drafts.has(key) ? "is a duplicate" : scenarioFault(userId, calls, shop, domain.open);
    if (rejection !== undefined) {
      tally.rejected[rejection]++;
      continue;
    }
    const outputs = wishes.questions.map(({ answer }) => answer);
    drafts.set(key, { userId, instruction: writeInstruction(wishes, draws), calls, outputs });
  }
  return [...drafts.values()];
}

/** Rewords the drafts' instructions; returns how many were reworded. */
async function rewriteAll(
  drafts: readonly Draft[],
  service: ChatService,
  { seed, signal, onProgress }: Pick<SynthesizeRetailOptions, "signal" | "onProgress"> & { seed: number },
): Promise<number> {
  let rewritten = 0;
  for (let start = 0; start < drafts.length; start += rewritesAtOnce) {
    const batch = drafts.slice(start, start + rewritesAtOnce);
    const results = await Promise.all(
      batch.map(({ instruction }, i) => {
        const own = derivedSeed(seed, streams.person, start + i);
        return rewriteInstruction(instruction, service, { seed: own, signal });
      }),
    );
    for (const [i, { text, changed }] of results.entries()) {
      batch[i]!.instruction.text = text;
      if (changed) rewritten++;
    }
    onProgress?.(start + batch.length, drafts.length);
  }
  return rewritten;
}

function toRecord({ userId, instruction, calls, outputs }: Draft, index: number): TauBenchTaskRecord {
  return {
    index,
    annotator: "synthetic",
    user_id: userId,
    instruction: instruction.text,
    actions: calls,
    outputs,
  };
}
