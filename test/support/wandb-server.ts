/** As much of a Weights & Biases server as `wandb sync` needs; it collects what is uploaded. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { gunzipSync } from "node:zlib";

export interface WandbUploads {
  /** Lines of the history, by their offsets. */
  history: Record<string, unknown>[];
  /** The last summary. */
  summary: Record<string, unknown>;
  /** Variables of the requests that made and updated the run. */
  run: Record<string, unknown>;
  /** Text of config.yaml. */
  config: string;
  exitCode: number | undefined;
}

export async function wandbServer(): Promise<{ url: string; uploads: WandbUploads; close(): Promise<void> }> {
  const uploads: WandbUploads = { history: [], summary: {}, run: {}, config: "", exitCode: undefined };
  const bucketOf = ({ name, project }: Record<string, unknown>) => ({
    ...{ id: "QnVja2V0", name, displayName: name, description: "", config: "{}", sweepName: null },
    ...{ historyLineCount: 0, project: { id: "UA==", name: project, entity: { id: "RQ==", name: "me" } } },
  });
  const answer = (path: string, text: string, origin: string): unknown => {
    if (path.endsWith("/config.yaml")) uploads.config = text;
    if (path.endsWith("/file_stream")) {
      const { files = {}, exitcode } = JSON.parse(text);
      const { "wandb-history.jsonl": history, "wandb-summary.json": summary } = files;
      for (const [i, line] of (history?.content ?? []).entries())
        uploads.history[history.offset + i] = JSON.parse(line);
      if (summary) uploads.summary = JSON.parse(summary.content.at(-1));
      if (typeof exitcode === "number") uploads.exitCode = exitcode;
    }
    if (path !== "/graphql") return {};
    const { query, variables } = JSON.parse(text);
    if (/upsertBucket/.test(query)) {
      for (const [name, value] of Object.entries(variables)) if (value !== null) uploads.run[name] = value;
      return { data: { upsertBucket: { bucket: bucketOf(variables), inserted: true } } };
    }
    if (/createRunFiles/.test(query)) {
      const files = variables.files.map((name: string) => ({ name, uploadUrl: `${origin}/upload/${name}` }));
      return { data: { createRunFiles: { runID: "QnVja2V0", uploadHeaders: [], files } } };
    }
    const viewer = { id: "VQ==", entity: "me", username: "me", flags: "{}", teams: { edges: [] } };
    return { data: { viewer, serverInfo: { cliVersionInfo: {}, features: [] }, model: { bucket: null } } };
  };
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const text = (request.headers["content-encoding"] === "gzip" ? gunzipSync(body) : body).toString();
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(answer(request.url ?? "", text, `http://${request.headers.host}`)));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    uploads,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
