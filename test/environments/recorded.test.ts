import { expect, it } from "vitest";
import { makeEnvironment } from "../../lib/environments/registry.ts";

it("takes only an action format, like the other environments no options or null", async () => {
  expect(await makeEnvironment("recorded")).toMatchObject({ actionFormat: "call" });
  expect(await makeEnvironment("recorded", null as never)).toMatchObject({ actionFormat: "call" });
  expect(await makeEnvironment("recorded", { actionFormat: "text" })).toMatchObject({ actionFormat: "text" });
  for (const wrong of [{ actionFormat: "solution" }, { actionFormt: "text" }, 7])
    await expect(makeEnvironment("recorded", wrong as never)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringMatching(/^recorded: /),
    });
});
