import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { Person } from "../../lib/cli/person.ts";

/** A person at a pipe or, with keys that mean something, at a terminal. */
function seat(isTTY: boolean) {
  const input = new PassThrough();
  const output = Object.assign(new PassThrough(), { isTTY, columns: 80 });
  return { input, person: new Person(input, output), shown: () => String(output.read() ?? "") };
}

test.each([true, false])(
  "answers come in order, also those given before they are asked for (terminal: %s)",
  async (isTTY) => {
    const { input, person, shown } = seat(isTTY);
    input.write("yes\nno\n");
    expect(await person.ask("first? ")).toBe("yes");
    expect(await person.ask("second? ")).toBe("no");
    const third = person.ask("third? ");
    input.write("maybe\n");
    expect(await third).toBe("maybe");
    expect(shown()).toContain("third? ");
    person.close();
  },
);

test("the end of a pipe ends the answers after the last line", async () => {
  const { input, person } = seat(false);
  input.end("yes\nno");
  expect(await person.ask("first? ")).toBe("yes");
  expect(await person.ask("second? ")).toBe("no");
  expect(await person.ask("third? ")).toBeUndefined();
  expect(await person.ask("fourth? ")).toBeUndefined();
  expect(person.signal.aborted).toBe(false);
});

test("Ctrl-D at a terminal ends the answers and the line without an interruption", async () => {
  const { input, person, shown } = seat(true);
  const answer = person.ask("first? ");
  input.write("\x04");
  expect(await answer).toBeUndefined();
  expect(shown().endsWith("\n")).toBe(true);
  expect(person.signal.aborted).toBe(false);
});

test("Ctrl-C at a terminal ends the answers and interrupts, even without a prompt", async () => {
  const asked = seat(true);
  const answer = asked.person.ask("first? ");
  asked.input.write("ye\x03");
  expect(await answer).toBeUndefined();
  expect(asked.person.signal.aborted).toBe(true);
  const busy = seat(true);
  const interrupted = new Promise((resolve) => busy.person.signal.addEventListener("abort", resolve));
  busy.input.write("\x03");
  await interrupted;
  expect(await busy.person.ask("first? ")).toBeUndefined();
});
