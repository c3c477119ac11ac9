import { createHash, randomBytes } from "node:crypto";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  truncateSync,
} from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { parseHubName, readHubConfig, resolveHubModel } from "../../lib/hub/hugging-face.ts";
import { resolveModel } from "../../lib/hub/resolve-model.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { expectFailure, recorder, sha256, temporaryDirectory, write } from "../support/files-and-servers.ts";
import { commit, type HubRepository, hubServer } from "../support/hub-server.ts";

const shipped = join(import.meta.dirname, "..", "..", "models", "errands-base");
const own = (file: string) => ({
  data: readFileSync(join(shipped, file)),
  large: file.endsWith(".safetensors"),
});
const repository: HubRepository = {
  files: Object.fromEntries([
    ...readdirSync(shipped).map((file) => [file, own(file)]),
    ["README.md", { data: Buffer.from("# Errands") }],
    ["pytorch_model.bin", { data: randomBytes(50_000), large: true }],
    ["onnx/model.onnx", { data: randomBytes(50_000), large: true }],
    ["quantized/tiny.gguf", { data: Buffer.from("GGUF and so on"), large: true }],
  ]),
};

async function place(
  repositories: Record<string, HubRepository> = { "them/errands": repository },
  fault?: Parameters<typeof hubServer>[1],
) {
  const home = temporaryDirectory();
  const server = await hubServer(repositories, fault);
  const env = { HF_HOME: home, HOME: home, HF_ENDPOINT: `${server.url}/` };
  const report = recorder();
  const resolve = (name: string, more: Record<string, unknown> = {}) =>
    resolveHubModel(parseHubName(name)!, { offline: false, env: { ...env, ...more }, report, retryMs: 1 });
  return { home, server, env, report, resolve, folder: join(home, "hub", "models--them--errands") };
}

describe("parseHubName", () => {
  it("takes a repository, a revision and a file apart", () => {
    expect(parseHubName("Qwen/Qwen2.5-7B-Instruct")).toEqual({
      repository: "Qwen/Qwen2.5-7B-Instruct",
      revision: "main",
    });
    expect(parseHubName("a/b@refs/pr/3")).toEqual({ repository: "a/b", revision: "refs/pr/3" });
    expect(parseHubName(`a/b/c/d.gguf@${commit}`)).toEqual({
      repository: "a/b",
      file: "c/d.gguf",
      revision: commit,
    });
  });

  it.each([
    "plain",
    "a/b/c",
    "../b",
    "a/..",
    "a/b@../../x",
    "/a/b",
    "a/b/",
    "a//b",
    "a/b@",
    "a/b/../c.gguf",
    "a b/c",
    "a/b--c",
  ])("knows no %s", (name) => expect(parseHubName(name)).toBeUndefined());
});

describe("a model of the hub", () => {
  it("is fetched once into the shared cache's layout, loads, and needs no network afterwards", async () => {
    const { home, server, resolve, folder, report } = await place();
    const path = await resolve("them/errands");
    expect(path).toBe(join(folder, "snapshots", commit));
    expect(readFileSync(join(folder, "refs", "main"), "utf8")).toBe(commit);
    for (const file of readdirSync(path)) {
      expect(lstatSync(join(path, file)).isSymbolicLink()).toBe(true);
      expect(readFileSync(join(path, file))).toEqual(repository.files[file]!.data);
    }
    expect(readlinkSync(join(path, "model.safetensors"))).toBe(
      `../../blobs/${sha256(repository.files["model.safetensors"]!.data)}`,
    );
    // Neither files that are not part of a model nor pickled weights.
    expect(readdirSync(path).sort()).toEqual(readdirSync(shipped).sort());
    expect(report.lines.join("\n")).toMatch(
      /them\/errands at main \(0123456789ab\): 2\.\d MB in 1 weight file/,
    );
    expect(readdirSync(join(home, "hub", ".locks"))).toEqual([]);

    const asked = server.requests.length;
    expect(await resolve("them/errands")).toBe(path);
    expect(await resolve(`them/errands@${commit}`, { HF_HUB_OFFLINE: "1" })).toBe(path);
    expect(server.requests).toHaveLength(asked);

    const learner = await Learner.load(path, { dtype: "float32" });
    const same = await Learner.load("errands-base", { dtype: "float32" });
    const ids = [[1, 2, 3]];
    expect(await learner.logits(ids)).toEqual(await same.logits(ids));
    await learner.dispose();
    await same.dispose();
  });

  it("is fetched with its template for conversations with tools", async () => {
    const template = "additional_chat_templates/tool_use.jinja";
    const files = {
      ...repository.files,
      [template]: { data: Buffer.from("{{ tools }}") },
      "additional_chat_templates/rag.jinja": { data: Buffer.from("{{ documents }}") },
    };
    const { resolve } = await place({ "them/errands": { files } });
    const path = await resolve("them/errands");
    expect(readFileSync(join(path, template), "utf8")).toBe("{{ tools }}");
    expect(readdirSync(join(path, "additional_chat_templates"))).toEqual(["tool_use.jinja"]);
  });

  it("has a config.json that is read without its weights, from the cache if it is there", async () => {
    const { env, server, resolve } = await place();
    const expected = JSON.parse(String(repository.files["config.json"]!.data));
    const read = (name: string, more: Record<string, unknown> = {}) =>
      readHubConfig(parseHubName(name)!, { env: { ...env, ...more }, retryMs: 1 });
    expect(await read("them/errands")).toEqual(expected);
    expect(server.requests).toEqual(["GET /them/errands/resolve/main/config.json"]);
    expect(server.large.requests).toEqual([]);
    await expectFailure(read("them/others"), "ERR_MODEL_NOT_FOUND", /refused access/);
    await expectFailure(read("them/errands@v2"), "ERR_MODEL_NOT_FOUND", /no model "them\/errands at v2"/);
    await expectFailure(
      read("them/errands", { HF_HUB_OFFLINE: "1" }),
      "ERR_DOWNLOAD",
      /network access is off/,
    );
    await resolve("them/errands");
    expect(await read("them/errands", { HF_HUB_OFFLINE: "1" })).toEqual(expected);
  });

  it("is what Learner.load and the commands take for a name with a slash", async () => {
    const { env, report, folder } = await place();
    expect(await resolveModel("them/errands", { env, report })).toBe(join(folder, "snapshots", commit));
  });

  it("is fetched once if two ask together, and completely if only a part is there", async () => {
    const { server, resolve, folder } = await place();
    const weights = () => server.large.requests.length;
    expect(new Set(await Promise.all([resolve("them/errands"), resolve("them/errands")])).size).toBe(1);
    expect(weights()).toBe(1);
    rmSync(join(folder, "snapshots", commit, "tokenizer.json"));
    await resolve("them/errands");
    expect(existsSync(join(folder, "snapshots", commit, "tokenizer.json"))).toBe(true);
    expect(weights()).toBe(1);
  });

  it("is complete without a tokenizer if the repository has none", async () => {
    const { "tokenizer.json": _, ...files } = repository.files;
    const { server, resolve } = await place({ "them/errands": { files } });
    const path = await resolve("them/errands");
    const asked = server.requests.length;
    expect(await resolve("them/errands", { HF_HUB_OFFLINE: "1" })).toBe(path);
    expect(server.requests).toHaveLength(asked);
    const learner = await Learner.load(path, { dtype: "float32" });
    expect((await learner.logits([[1, 2, 3]])).length).toBeGreaterThan(0);
    await learner.dispose();
  });

  it("continues an interrupted download, and discards one with other bytes", async () => {
    const first = await place();
    await first.resolve("them/errands");
    const blob = join(first.folder, "blobs", sha256(repository.files["model.safetensors"]!.data));
    const half = repository.files["model.safetensors"]!.data.length >> 1;
    const torn = readFileSync(blob);
    rmSync(first.folder, { recursive: true });
    write(`${blob}.part`, torn);
    truncateSync(`${blob}.part`, half);
    await first.resolve("them/errands");
    expect(first.server.large.requests.at(-1)).toBe(`GET /${sha256(torn)} bytes=${half}-`);

    const other = await place({ "them/errands": repository }, (request, response) => {
      if (!request.url!.endsWith("/resolve/0123456789abcdef0123456789abcdef01234567/config.json"))
        return false;
      response.writeHead(200, { "content-length": own("config.json").data.length });
      response.end(randomBytes(own("config.json").data.length));
      return true;
    });
    await expectFailure(other.resolve("them/errands"), "ERR_DOWNLOAD", /git's name is .* expected/);
    expect(existsSync(join(other.folder, "refs", "main"))).toBe(false);
    expect(readdirSync(join(other.folder, "blobs"))).toEqual([]);
  });

  it("is found under a branch, a tag and a commit, and keeps them apart", async () => {
    const later = createHash("sha1").update("later").digest("hex");
    const { resolve, folder, server } = await place({
      "them/errands": { ...repository, refs: { "v1.0": commit, "refs/pr/1": later, [later]: later } },
    });
    expect(await resolve("them/errands@v1.0")).toBe(join(folder, "snapshots", commit));
    expect(await resolve("them/errands@refs/pr/1")).toBe(join(folder, "snapshots", later));
    expect(readFileSync(join(folder, "refs", "refs/pr/1"), "utf8")).toBe(later);
    expect(server.large.requests).toHaveLength(1);
    await expectFailure(resolve("them/errands@v2"), "ERR_MODEL_NOT_FOUND", /no model "them\/errands at v2"/);
  });

  it("may be one GGUF file", async () => {
    const { resolve, folder } = await place();
    const path = await resolve("them/errands/quantized/tiny.gguf");
    expect(path).toBe(join(folder, "snapshots", commit, "quantized", "tiny.gguf"));
    expect(readFileSync(path, "utf8")).toBe("GGUF and so on");
    await expectFailure(resolve("them/errands/other.gguf"), "ERR_MODEL_NOT_FOUND", /has no other\.gguf/);
  });

  it("comes in shards where an index names them", async () => {
    const files = {
      ...repository.files,
      "model.safetensors.index.json": {
        data: Buffer.from(
          JSON.stringify({ weight_map: { a: "model-1.safetensors", b: "model-2.safetensors" } }),
        ),
      },
      "model-1.safetensors": { data: randomBytes(1000), large: true },
      "model-2.safetensors": { data: randomBytes(1000), large: true },
      "model-3.safetensors": { data: randomBytes(1000), large: true },
    };
    const { resolve } = await place({ "them/errands": { files } });
    const names = readdirSync(await resolve("them/errands")).filter((name) => name.endsWith(".safetensors"));
    expect(names.sort()).toEqual(["model-1.safetensors", "model-2.safetensors"]);
    const hostile = { data: Buffer.from(JSON.stringify({ weight_map: { a: "../../model.safetensors" } })) };
    const bad = await place({
      "them/errands": { files: { ...files, "model.safetensors.index.json": hostile } },
    });
    await expectFailure(bad.resolve("them/errands"), "ERR_MODEL_FORMAT", /weight_map/);
  });

  it("is refused, before it is downloaded, if a file is larger than is read", async () => {
    const { resolve, server, folder } = await place(undefined, (request, response) => {
      if (!request.url!.includes("/tree/")) return false;
      const entry = { type: "file", oid: "0".repeat(40) };
      const sizes = { "model.safetensors": 100, "tokenizer.json": 2 ** 40 };
      const files = Object.entries(sizes).map(([path, size]) => ({ ...entry, path, size }));
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(files));
      return true;
    });
    await expectFailure(
      resolve("them/errands"),
      "ERR_MODEL_FORMAT",
      /tokenizer\.json has 1099511627776 bytes/,
    );
    expect(server.requests.filter((request) => request.includes("/resolve/"))).toEqual([]);
    expect(existsSync(join(folder, "blobs"))).toBe(false);
  });

  it.each([undefined, -1, 0.5, "7"])(
    "is refused where the hub says that a file has %s bytes",
    async (size) => {
      const { resolve } = await place(undefined, (request, response) => {
        if (!request.url!.includes("/tree/")) return false;
        const file = { type: "file", path: "model.safetensors", oid: "0".repeat(40), size };
        response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify([file]));
        return true;
      });
      await expectFailure(resolve("them/errands"), "ERR_DOWNLOAD", /the hub sent no size/);
    },
  );

  it("is refused where the hub's answer has no end", async () => {
    const { resolve } = await place(undefined, (_request, response) => {
      response.writeHead(200, { "content-type": "application/json" });
      const chunk = Buffer.alloc(1 << 20, " ");
      const more = () => {
        while (!response.destroyed && response.write(chunk));
      };
      response.on("drain", more);
      more();
      return true;
    });
    await expectFailure(resolve("them/errands"), "ERR_DOWNLOAD", /the reply has more than \d+ bytes/);
  });

  it("is refused where the list of files does not end, though it has none", async () => {
    const { resolve, server } = await place(undefined, (request, response) => {
      if (!request.url!.includes("/tree/")) return false;
      const link = `<http://${request.headers.host}${request.url}>; rel="next"`;
      response.writeHead(200, { "content-type": "application/json", link }).end("[]");
      return true;
    });
    await expectFailure(resolve("them/errands"), "ERR_DOWNLOAD", /the list of files does not end/);
    expect(server.requests).toHaveLength(200);
  });

  it("is refused if the cache has an index that is a directory, no JSON, or too large", async () => {
    const { resolve } = await place();
    const path = await resolve("them/errands");
    const index = join(path, "model.safetensors.index.json");
    mkdirSync(index);
    await expectFailure(resolve("them/errands"), "ERR_IO", /index\.json is not a regular file/);
    rmSync(index, { recursive: true });
    write(index, "{");
    await expectFailure(resolve("them/errands"), "ERR_MODEL_FORMAT", /index\.json is not JSON/);
    truncateSync(index, 200_000_000); // sparse
    await expectFailure(resolve("them/errands"), "ERR_MODEL_FORMAT", /index\.json has 200000000 bytes/);
  });

  it("is refused where it has pickled weights only", async () => {
    const { "model.safetensors": _, ...files } = repository.files;
    const { resolve, folder } = await place({ "them/errands": { files } });
    await expectFailure(resolve("them/errands"), "ERR_MODEL_FORMAT", /but not pickled weights/);
    expect(existsSync(folder)).toBe(false);
  });

  it("needs the token of a closed repository, and shows it to the hub alone", async () => {
    const closed = { ...repository, token: "secret" };
    const { resolve, server, home } = await place({ "them/errands": closed });
    await expectFailure(resolve("them/errands"), "ERR_MODEL_NOT_FOUND", /set HF_TOKEN/);
    await expectFailure(
      resolve("them/errands", { HF_TOKEN: "other" }),
      "ERR_MODEL_NOT_FOUND",
      /accept the model's terms/,
    );
    write(join(home, "token"), "secret\n");
    await resolve("them/errands");
    expect(server.large.requests).toHaveLength(1);
    expect(server.leaked).toEqual([]);

    const elsewhere = await place({ "them/errands": closed }, (request, response) => {
      if (!request.url!.includes("/tree/")) return false;
      const link = `<${elsewhere.server.large.url}/page>; rel="next"`;
      response.writeHead(200, { "content-type": "application/json", link }).end("[]");
      return true;
    });
    await expectFailure(
      elsewhere.resolve("them/errands", { HF_TOKEN: "secret" }),
      "ERR_MODEL_NOT_FOUND",
      /./,
    );
    expect(elsewhere.server.large.requests).toEqual(["GET /page"]);
    expect(elsewhere.server.leaked).toEqual([]);
  });

  it("names no password of a mirror in its errors", async () => {
    const { server, resolve } = await place();
    const HF_ENDPOINT = server.url.replace("//", "//me:pass%40word@");
    const failed = resolve("them/nothing", { HF_ENDPOINT });
    await expectFailure(failed, "ERR_MODEL_NOT_FOUND", new RegExp(` ${server.url}`));
    await expect(failed).rejects.toThrow(/^(?!.*pass)/);
    await expect(resolve("them/errands", { HF_ENDPOINT })).resolves.toMatch(/snapshots/);
  });

  it("waits for a busy hub, outlasts cut connections, and gives up on a broken one", async () => {
    const faults = new Map<string, number>();
    const { resolve, server } = await place({ "them/errands": repository }, (request, response) => {
      const count = faults.get(request.url!) ?? 0;
      faults.set(request.url!, count + 1);
      if (count >= 2) return false;
      if (count === 0) response.writeHead(429, { "retry-after": "0" }).end();
      else if (request.url!.includes("/api/")) response.destroy();
      else response.writeHead(503).end();
      return true;
    });
    await resolve("them/errands");
    expect(server.large.requests).toHaveLength(3);

    const broken = await place({ "them/errands": repository }, (_request, response) => {
      response.writeHead(500).end();
      return true;
    });
    await expectFailure(
      broken.resolve("them/errands"),
      "ERR_DOWNLOAD",
      /them\/errands is not a local directory, and the request to .* failed: status 500\. Run the command again/,
    );
    await broken.server.large.close();
    const gone = { HF_ENDPOINT: broken.server.large.url };
    await expectFailure(
      broken.resolve("them/errands", gone),
      "ERR_DOWNLOAD",
      /the request to .* failed: .*\. Check the network; behind a proxy, set HTTPS_PROXY\.$/,
    );
  });

  it("says what is missing where the network is not to be used", async () => {
    const { resolve, server, env, report } = await place();
    await expectFailure(
      resolve("them/errands", { HF_HUB_OFFLINE: "1" }),
      "ERR_DOWNLOAD",
      /^them\/errands is not a local directory, .* is missing or incomplete in .*, and network access is off/,
    );
    // Of a command that never downloads, such as nlac verify.
    await expectFailure(
      resolveHubModel(parseHubName("them/errands")!, { offline: true, env, report, retryMs: 1 }),
      "ERR_DOWNLOAD",
      /this command does not download models/,
    );
    expect(server.requests).toEqual([]);
    await expectFailure(
      resolve("nobody/nothing"),
      "ERR_MODEL_NOT_FOUND",
      /nobody\/nothing is not a local directory, and .* refused access/,
    );
  });
});
