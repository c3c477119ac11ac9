/**
 * The tools, databases and texts, compared with those of tau-bench and Python
 * (scripts/fixtures/tau_bench.py).
 */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { airlineTools } from "../../../lib/environments/tau-bench/airline.ts";
import { calculate } from "../../../lib/environments/tau-bench/calculate.ts";
import { type DomainName, domainNames, openDomain } from "../../../lib/environments/tau-bench/domain.ts";
import { BaseText } from "../../../lib/environments/tau-bench/hash.ts";
import { round2 } from "../../../lib/environments/tau-bench/python.ts";
import { retailTools } from "../../../lib/environments/tau-bench/retail.ts";
import {
  canonicalForm,
  dumps,
  hashedText,
  referenceForm,
  repr,
} from "../../../lib/environments/tau-bench/text.ts";
import {
  type Dict,
  fromJavaScript,
  parseJson,
  type Value,
} from "../../../lib/environments/tau-bench/values.ts";

const fixtures = join(import.meta.dirname, "../../fixtures/tau-bench");
const domains = { retail: openDomain("retail", fixtures), airline: openDomain("airline", fixtures) };

interface RecordedCalls {
  steps: { name: string; arguments: string; observation: string | null; exception?: true }[];
  referenceHash: string;
}

const recorded = JSON.parse(readFileSync(join(fixtures, "recorded.json"), "utf8")) as Record<
  DomainName,
  RecordedCalls[]
> & {
  numbers: [json: string, repr: string, rounded: string][];
  texts: { json: string; repr: string; reference: string }[];
  expressions: [expression: string, observation: string][];
  withoutReturn: [domain: DomainName, tool: string, runsOut: boolean][];
  certificates: [observation: string | null, referenceHash: string][];
};

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

describe.each(domainNames)("the tools of %s", (name) => {
  it("answer right and wrong calls as tau-bench does, and leave the same state", () => {
    const fresh = domains[name].open().state;
    for (const { steps, referenceHash } of recorded[name]) {
      const database = domains[name].open();
      for (const step of steps) {
        const { observation, failed } = database.call(step.name, step.arguments);
        const label = `${step.name} ${step.arguments}`;
        if (step.exception) expect(observation, label).toMatch(/^Error: /);
        else expect(observation, label).toBe(step.observation);
        expect(failed, label).toBe(/^(Error: |Unknown action )/.test(observation ?? ""));
      }
      expect(database.state.referenceHash, JSON.stringify(steps)).toBe(referenceHash);
    }
    expect(domains[name].open().state.equals(fresh)).toBe(true);
    expect(domains[name].open().state.referenceHash).toBe(fresh.referenceHash);
  });

  it("never throw, for any arguments", () => {
    const tools = name === "retail" ? retailTools : airlineTools;
    const ids = ["#W10", "mara_quist_12", "20", "AAA111", "noa_berg_5", "F1", "economy", "__proto__", "yes"];
    const argument = fc.oneof(
      fc.constantFrom(...ids),
      fc.jsonValue({ maxDepth: 3 }),
      fc.anything({ withBigInt: true, withMap: false, maxDepth: 2 }),
    );
    const call = fc.constantFrom(...tools).chain((tool) =>
      fc.record({
        name: fc.constant(tool.name),
        args: fc.oneof(
          fc.record(Object.fromEntries(tool.parameters.map((parameter) => [parameter, argument]))),
          fc.dictionary(fc.constantFrom(...tool.parameters, "data", "constructor", "x"), argument),
        ),
      }),
    );
    fc.assert(
      fc.property(fc.array(call, { maxLength: 4 }), (calls) => {
        const database = domains[name].open();
        for (const { name, args } of calls) {
          const { observation } = database.call(name, args);
          if (name !== "send_certificate" || observation !== null) expect(typeof observation).toBe("string");
          expect(database.state.sha256).toMatch(/^[\da-f]{64}$/);
          expect(database.state.referenceHash).toMatch(/^[\da-f]{64}$/);
        }
      }),
      { numRuns: 300 },
    );
  });
});

describe("a database", () => {
  const address = { address1: "1", address2: "", city: "c", state: "s", country: "u", zip: "z" };
  const move = (zip: unknown) => ({ user_id: "ines_vale_77", ...address, zip });

  it("holds no reference to the arguments", () => {
    const database = domains.retail.open();
    const zip = { code: ["1"] };
    database.call("modify_user_address", move(zip));
    const { referenceHash } = database.state;
    zip.code.push("2");
    database.call("modify_user_address", { ...move(zip), user_id: "nobody" });
    expect(database.state.referenceHash).toBe(referenceHash);
    const read = parseJson('{"code": []}') as Dict;
    const args = new Map([...(fromJavaScript(move("")) as Dict), ["zip", read]]);
    database.call("modify_user_address", args as Dict);
    const before = database.state.referenceHash;
    (read.get("code") as Value[]).push("3");
    database.call("think", { thought: "" });
    expect(database.state.referenceHash).toBe(before);
  });

  it("does not see another's changes, and a state does not see later ones", () => {
    const [one, other] = [domains.retail.open(), domains.retail.open()];
    const fresh = one.state;
    one.call("modify_user_address", move("1"));
    const first = one.state;
    one.call("modify_user_address", move("2"));
    expect(new Set([fresh, first, one.state].map(({ sha256 }) => sha256)).size).toBe(3);
    expect(other.state.sha256).toBe(fresh.sha256);
    other.call("modify_user_address", move("1"));
    expect(other.state.sha256).toBe(first.sha256);
    expect(other.state.equals(first)).toBe(true);
    expect(other.state.equals(one.state)).toBe(false);
  });

  it("distinguishes 54.0 from 54 as the reference does, which the canonical hash does not", () => {
    const state = (zip: string) => {
      const database = domains.retail.open();
      database.call("modify_user_address", JSON.stringify(move("?")).replace('"?"', zip));
      return database.state;
    };
    expect(state("54.0").equals(state("54"))).toBe(false);
    expect(state("54.0").referenceHash).not.toBe(state("54").referenceHash);
    expect(state("54.0").sha256).toBe(state("54").sha256);
  });

  it("answers too deep, cyclic or invalid JSON with an error", () => {
    const database = domains.retail.open();
    const endless: Record<string, unknown> = {};
    endless.thought = endless;
    for (const args of [
      endless,
      `{"thought": ${"[".repeat(100_000)}`,
      '{"thought": ',
      "[]",
      '{"thought": 1e}',
    ]) {
      expect(database.call("think", args as string)).toMatchObject({
        failed: true,
        observation: expect.stringMatching(/^Error: /),
      });
    }
    expect(database.call("think", JSON.parse('{"thought": 1, "__proto__": {"polluted": 1}}')).failed).toBe(
      true,
    );
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });

  it("makes three reservations and certificates", () => {
    const database = domains.airline.open();
    const booking = {
      user_id: "noa_berg_5",
      origin: "SFO",
      destination: "DEN",
      flight_type: "one_way",
      cabin: "economy",
      flights: [{ flight_number: "F3", date: "2024-05-15" }],
      passengers: [{ first_name: "Noa" }],
      payment_methods: [{ payment_id: "credit_card_1", amount: 90 }],
      total_baggages: 0,
      nonfree_baggages: 0,
      insurance: "no",
    };
    const ids = [1, 2, 3, 4].map(() => JSON.parse(database.call("book_reservation", booking).observation!));
    expect(ids.map((made) => made.reservation_id)).toEqual(["HATHAT", "HATHAU", "HATHAV", "HATHAV"]);
    expect([...database.state.records("reservations").keys()].slice(-3)).toEqual([
      "HATHAT",
      "HATHAU",
      "HATHAV",
    ]);
    const send = () => database.call("send_certificate", { user_id: "noa_berg_5", amount: 50 });
    expect([send(), send(), send()].map(({ observation }) => observation!.slice(12, 31))).toEqual([
      "certificate_3221322",
      "certificate_3221323",
      "certificate_3221324",
    ]);
    expect(send().failed).toBe(false);
  });

  // The original's loop over three ids ends: no error, no change, and Python's None as the answer.
  it("answers a fourth certificate as tau-bench does", () => {
    const database = domains.airline.open();
    expect(recorded.certificates.map(([observation]) => observation === null)).toEqual([
      false,
      false,
      false,
      true,
    ]);
    for (const [observation, referenceHash] of recorded.certificates) {
      const answer = database.call("send_certificate", { user_id: "noa_berg_5", amount: 50n });
      expect(answer).toEqual({ observation, failed: false });
      expect(database.state.referenceHash).toBe(referenceHash);
    }
  });

  it("has no other tool that ends without a return in tau-bench", () => {
    const names = { retail: retailTools, airline: airlineTools };
    expect(recorded.withoutReturn.map(([domain, tool]) => `${domain} ${tool}`).sort()).toEqual(
      domainNames.flatMap((domain) => names[domain].map(({ name }) => `${domain} ${name}`)).sort(),
    );
    const found = recorded.withoutReturn.filter(([, , runsOut]) => runsOut);
    expect(found).toEqual([["airline", "send_certificate", true]]);
  });
});

describe("strings", () => {
  it("numbers are formatted and rounded as in Python", () => {
    for (const [json, written, rounded] of recorded.numbers) {
      const value = parseJson(json) as number;
      expect([repr(value), repr(round2(value))], json).toEqual([written, rounded]);
      expect(dumps(value)).toBe(json);
    }
  });

  it("values are formatted as in Python", () => {
    for (const { json, repr: written, reference } of recorded.texts) {
      const value = parseJson(json);
      expect([dumps(value), repr(value), hashedText([value], referenceForm)], json).toEqual([
        json,
        written,
        reference,
      ]);
    }
  });

  it("JSON is parsed as in JavaScript, and nothing else is accepted", () => {
    const read = (json: string) => JSON.parse(hashedText(parseJson(json), canonicalForm));
    const expected = (json: string) => JSON.parse(JSON.stringify(JSON.parse(json)));
    fc.assert(
      fc.property(fc.json(), fc.nat(), (json, place) => {
        expect(read(json)).toEqual(expected(json));
        const at = place % json.length;
        const torn = json.slice(0, at) + json.slice(at + 1);
        let outcome: unknown;
        try {
          outcome = expected(torn);
        } catch {
          expect(() => parseJson(torn)).toThrow(SyntaxError);
          return;
        }
        expect(read(torn)).toEqual(outcome);
      }),
    );
  });
});

describe("calculate", () => {
  it("answers as Python does, including errors", () => {
    for (const [expression, observation] of recorded.expressions) {
      expect(calculate(expression), expression.slice(0, 100)).toBe(observation);
    }
  });

  it("rejects huge powers in bounded time", () => {
    for (const expression of ["9**9**9", "9**9**9**9", "(9**9999)**9999", "2**131073 - 2**131073"]) {
      expect(calculate(expression)).toBe("Error: the number is too large");
    }
  });
});

describe("hashes of few changed records", () => {
  const text = fc.string({ unit: "binary", maxLength: 3 });
  const record: fc.Arbitrary<Dict> = fc
    .array(fc.tuple(text, text), { maxLength: 2 })
    .map((pairs) => new Map(pairs));
  const table = fc.array(fc.tuple(text, record), { maxLength: 5 }).map((records) => new Map(records));
  const tables = fc.record({ b: table, a: table }).map((both) => new Map(Object.entries(both)));

  it.each([canonicalForm, referenceForm])("equal the hash of the whole text", (form) => {
    fc.assert(
      fc.property(tables, tables, (base, changes) => {
        const merged = new Map(
          [...base].map(([name, records]) => [name, new Map([...records, ...changes.get(name)!])]),
        );
        expect(new BaseText(base, form).hash(changes)).toBe(sha256(hashedText(merged, form)));
      }),
      { numRuns: 500 },
    );
  });

  it("also far into a long text", () => {
    const long = new Map(
      Array.from({ length: 900 }, (_, i) => [`id${i}`, new Map([["text", `é${"x".repeat(i)}`]])]),
    );
    const base = new Map([["records", long]]);
    const text = new BaseText(base, referenceForm);
    for (const ids of [["id0"], ["id899", "id5"], ["id77x", "zz"], [], ["a"]]) {
      const changed = new Map(ids.map((id) => [id, new Map([["text", "new"]])]));
      const merged = new Map([["records", new Map([...long, ...changed])]]);
      expect(text.hash(new Map([["records", changed]]))).toBe(sha256(hashedText(merged, referenceForm)));
    }
  });
});
