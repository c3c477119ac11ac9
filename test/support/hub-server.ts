/**
 * A server that behaves like the Hugging Face hub, and a second one like the hosts of its large
 * files.
 */

import { createHash } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type Handler, respondWithRange, serve, sha256 } from "./files-and-servers.ts";

export interface HubRepository {
  /** Files by path; those with `large` lie in the other host's storage, under their SHA-256. */
  files: Record<string, { data: Buffer; large?: boolean }>;
  /** Branches and tags. Default: main is `commit`. */
  refs?: Record<string, string>;
  /** Only readable with this token. */
  token?: string;
}

export const commit = "0123456789abcdef0123456789abcdef01234567";

/** Entries a page of a file list has: few, so that there are several pages. */
const pageLength = 3;

/** `fault` may answer a request in the hub's place; true: it did. */
export async function hubServer(
  repositories: Record<string, HubRepository>,
  fault: (request: IncomingMessage, response: ServerResponse) => boolean = () => false,
) {
  const storage = new Map<string, Buffer>();
  /** What the storage was sent as authorization: the hub's token must never reach it. */
  const leaked: string[] = [];
  const large = await serve((request, response) => {
    if (request.headers.authorization !== undefined) leaked.push(request.headers.authorization);
    if (fault(request, response)) return;
    const data = storage.get(request.url!.slice(1));
    if (data === undefined) return void response.writeHead(404).end();
    respondWithRange(data)(request, response);
  });
  for (const { files } of Object.values(repositories))
    for (const { data, large } of Object.values(files)) if (large) storage.set(sha256(data), data);

  const json = (response: ServerResponse, value: unknown, headers: Record<string, string> = {}) =>
    void response
      .writeHead(200, { "content-type": "application/json", ...headers })
      .end(JSON.stringify(value));
  const refuse = (response: ServerResponse, status: number, error: string) =>
    void response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify({ error }));

  const handler: Handler = (request, response) => {
    if (fault(request, response)) return;
    const address = new URL(request.url!, "http://hub");
    const path = decodeURIComponent(address.pathname);
    const match =
      /^\/api\/models\/([^/]+\/[^/]+)\/(revision|tree)\/([^?]+)$/.exec(path) ??
      /^\/([^/]+\/[^/]+)\/(resolve)\/([^/]+)\/(.+)$/.exec(path);
    if (match === null) return refuse(response, 404, "Not found");
    const [, name, kind, revision, file] = match;
    const repository = repositories[name!];
    const denied =
      repository?.token !== undefined && request.headers.authorization !== `Bearer ${repository.token}`;
    if (repository === undefined || denied) return refuse(response, 401, "Repository not found");
    const refs: Record<string, string> = { main: commit, [commit]: commit, ...repository.refs };
    if (!(revision! in refs)) return refuse(response, 404, "Invalid rev id");
    const { files } = repository;
    if (kind === "revision") return json(response, { id: name, _id: "0", sha: refs[revision!] });
    if (kind === "tree") {
      const paths = Object.keys(files).filter(
        (file) => address.searchParams.get("recursive") === "true" || !file.includes("/"),
      );
      const from = Number(address.searchParams.get("cursor") ?? 0);
      const next = new URL(`http://${request.headers.host}${request.url}`);
      next.searchParams.set("cursor", String(from + pageLength));
      const page = paths.slice(from, from + pageLength).map((path) => {
        const { data, large } = files[path]!;
        const lfs = large ? { lfs: { oid: sha256(data), size: data.length, pointerSize: 130 } } : {};
        return { type: "file", path, size: data.length, oid: gitName(data), ...lfs };
      });
      const link = from + pageLength < paths.length ? { link: `<${next.href}>; rel="next"` } : undefined;
      return json(response, page, link);
    }
    const found = files[file!];
    if (found === undefined) return refuse(response, 404, "Entry not found");
    if (!found.large) return respondWithRange(found.data)(request, response);
    return void response.writeHead(302, { location: `${large.url}/${sha256(found.data)}` }).end();
  };
  const hub = await serve(handler);
  return { url: hub.url, requests: hub.requests, large, leaked };
}

function gitName(data: Buffer): string {
  return createHash("sha1").update(`blob ${data.length}\0`).update(data).digest("hex");
}
