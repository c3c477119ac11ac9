/**
 * Scenarios for the retail domain, made from its records: a customer, changes to that customer's orders that the
 * records and the policy allow, the calls that carry them out, and an instruction. For the 2,500 + 500 retail scenarios
 * of the NLAC paper, which were not published.
 *
 * Training and test scenarios have no customer in common. Every scenario is checked (scenario-check.ts); one that
 * fails, or that wants the same changes as an earlier one, is drawn again. What is made is a function of the data and
 * the options, as far as no language model rewrites the instructions.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { derivedSeed, permutation, streams } from "../../base/random.ts";
import { checkConfig, inOption } from "../../base/validation.ts";
import type { ChatService } from "../../services/chat-service.ts";
import { openService, type ServiceSource } from "../../services/open-service.ts";
import { type Domain, openDomain } from "./domain.ts";
import { Draws } from "./draws.ts";
import { defaultData } from "./environment.ts";
import { type Instruction, writeInstruction } from "./instruction.ts";
import { rewriteInstruction } from "./rewrite.ts";
import { type Fault, scenarioFault } from "./scenario-check.ts";
import { type Customer, readShop, type Shop } from "./shop.ts";
import { type Call, callsOf, drawWishes, openOrders } from "./wishes.ts";

export interface SynthesizeRetailOptions {
  /** The directory of tau-bench's data, with the domain in `retail`. Default `$NLAC_DATA/tau-bench`. */
  data?: string;
  /** Scenarios for training. Default 2500, the paper's. */
  train?: number;
  /** Scenarios for testing. Default 500, the paper's. */
  test?: number;
  /** Default 0. */
  seed?: number;
  /** Share of the scenarios in which the customer also asks something that must be answered. Default 0.2. */
  questions?: number;
  /** Customers that must not be trained on: those of the tasks that a policy is to be tested on. Default none. */
  heldOut?: readonly string[];
  /** Who puts the instructions into other words. Default: nobody. */
  rewrite?: ServiceSource;
  signal?: AbortSignal;
  /** Called while instructions are rewritten. */
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

/** A task as tau-bench's own files have it. */
export interface TauBenchTaskRecord {
  index: number;
  annotator: "synthetic";
  user_id: string;
  instruction: string;
  actions: Call[];
  outputs: string[];
}

export interface RetailSynthesis {
  train: TauBenchTaskRecord[];
  test: TauBenchTaskRecord[];
  /** Scenarios that were drawn. */
  drawn: number;
  /** Those of them that were not taken, by reason. */
  rejected: Record<Rejection, number>;
  /** Instructions that are in the words of `rewrite`. */
  rewritten: number;
}

/** What was drawn does not go together; it was there already; or it fails a check. */
export type Rejection = "does not fit the records" | "is there already" | Fault;

/** How often a scenario is drawn, for each that is wanted, before it is given up. */
const maxDraws = 100;

/** Most instructions that are being rewritten at once. */
const rewritesAtOnce = 16;

/**
 * Makes scenarios.
 *
 * @throws NlacError ERR_CONFIG for options or data that cannot be used, ERR_VALUE where the data does not yield as many
 * different scenarios, ERR_SERVICE and ERR_ABORTED
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
    const service = inOption("rewrite", () => openService(rewrite));
    try {
      const all = [...drafts.train, ...drafts.test];
      rewritten = await rewriteAll(all, service, { seed, signal, onProgress });
    } finally {
      // A service that was made elsewhere is its maker's to close.
      if (service !== rewrite) await service.close?.();
    }
  }
  return { train: drafts.train.map(toRecord), test: drafts.test.map(toRecord), ...tally, rewritten };
}

/** A scenario before it has its place among the others. */
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

function newTally(): Pick<RetailSynthesis, "drawn" | "rejected"> {
  return {
    drawn: 0,
    rejected: {
      "does not fit the records": 0,
      "is there already": 0,
      "breaks the policy": 0,
      "cannot be done": 0,
      "does more than is needed": 0,
      "depends on the order": 0,
    },
  };
}

/**
 * The customers of either split: those to whose orders something can be done, as many for testing as its share of the
 * scenarios. Those held out come to the test first, and never to the training.
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

/** `count` different scenarios that pass every check, of the customers in turn: once for each order that is open. */
function drawScenarios(
  count: number,
  customers: readonly Customer[],
  seed: number,
  { shop, domain, questions, signal }: Source,
  tally: Pick<RetailSynthesis, "drawn" | "rejected">,
): Draft[] {
  const turns = customers.flatMap((customer) => openOrders(shop, customer).map(() => customer));
  const drafts = new Map<string, Draft>();
  for (let i = 0; drafts.size < count; i++) {
    throwIfAborted(signal);
    if (customers.length === 0 || i === maxDraws * count) {
      throw new NlacError(
        "ERR_VALUE",
        `${customers.length} customers gave ${drafts.size} of ${count} different scenarios; ask for fewer.`,
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
    const rejection = drafts.has(key) ? "is there already" : scenarioFault(userId, calls, shop, domain.open);
    if (rejection !== undefined) {
      tally.rejected[rejection]++;
      continue;
    }
    const outputs = wishes.questions.map(({ answer }) => answer);
    drafts.set(key, { userId, instruction: writeInstruction(wishes, draws), calls, outputs });
  }
  return [...drafts.values()];
}

/** Puts the drafts' instructions into other words; returns how many are in other words now. */
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
