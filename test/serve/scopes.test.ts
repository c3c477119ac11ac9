import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { RequestError } from "../../lib/serve/request-error.ts";
import { requireScope, type Scope, scopeOf } from "../../lib/serve/scopes.ts";
import { nlac } from "../support/command-line.ts";
import { inDirectory } from "../support/tiny.ts";

function statusOf(call: () => void): number {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(RequestError);
    return (error as RequestError).status;
  }
  return 200;
}

describe("scopeOf", () => {
  it.each<[string, string, Scope]>([
    ["GET", "/v1/models", "ask"],
    ["POST", "/v1/chat/completions", "ask"],
    ["POST", "/v1/episodes/a/reward", "reward"],
    ["POST", "/v1/episodes/a/corrections", "reward"],
    ["GET", "/v1/tasks/next", "reward"],
    ["DELETE", "/v1/episodes/a", "train"],
    ["GET", "/v1/training", "train"],
    ["GET", "/v1/versions", "train"],
    ["POST", "/v1/versions/1.2/rollback", "train"],
    ["POST", "/v1/metrics", "train"],
    ["GET", "/v1/trainings", "ask"],
  ])("of %s %s is %s", (method, path, scope) => {
    expect(scopeOf(path, method)).toBe(scope);
  });
});

describe("requireScope", () => {
  const keys = { asker: ["ask"], trainer: ["ask", "train"] } as const;
  const status = (key: string | undefined, scope: Scope, token?: string) =>
    statusOf(() => requireScope(key, scope, { tokens: keys, ...(token !== undefined && { token }) }));

  it("allows everything without keys", () => {
    expect(statusOf(() => requireScope(undefined, "train", {}))).toBe(200);
  });

  it("answers 401 without a known key, also if one of its parts is right", () => {
    for (const key of [undefined, "", "asker", "Bearer ", "Bearer aske", "Bearer asker ", "bearer asker"])
      expect([key, status(key, "ask")]).toEqual([key, 401]);
  });

  it("answers 403 for a key without the scope", () => {
    expect(status("Bearer asker", "ask")).toBe(200);
    expect(status("Bearer asker", "train")).toBe(403);
    expect(status("Bearer trainer", "train")).toBe(200);
    expect(status("Bearer trainer", "reward")).toBe(403);
  });

  it("lets the main key do everything", () => {
    for (const scope of ["ask", "reward", "train"] as const)
      expect(status("Bearer main", scope, "main")).toBe(200);
    expect(status("Bearer main", "ask")).toBe(401);
  });
});

it.each([
  ["an unknown scope", '{"sk-secret-a": ["ask"], "sk-secret-b": ["asks"]}'],
  ["no list", '{"sk-secret-a": ["ask"], "sk-secret-b": "ask"}'],
  ["no JSON", '{"sk-secret-a": ["ask"], "sk-secret-b" ["ask"]}'],
])("a file of keys with %s is refused without naming a key", (_, text) =>
  inDirectory(async (directory) => {
    const file = join(directory, "keys.json");
    writeFileSync(file, text);
    const { code, output, errors } = await nlac("serve", "errands-base", "--tokens", file);
    expect(code).toBe(1);
    expect(errors).toContain("keys.json");
    expect(output + errors).not.toContain("secret");
  }),
);
