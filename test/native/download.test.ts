import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:https";
import { type AddressInfo, connect } from "node:net";
import { join } from "node:path";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { download, redact } from "../../lib/native/download.ts";
import {
  expectFailure,
  respondWithRange,
  serve,
  sha256,
  temporaryDirectory,
  write,
} from "../support/files-and-servers.ts";

const data = randomBytes(300_000);

function target() {
  const directory = temporaryDirectory();
  return { directory, path: join(directory, "file.bin"), checksum: sha256(data), retryMs: 1 };
}

describe("download", () => {
  it("reports progress and does nothing when the file is there", async () => {
    const { url, requests } = await serve(respondWithRange(data));
    const { directory, ...options } = target();
    const seen: (number | undefined)[] = [];
    await download({ url: `${url}/f`, ...options, onProgress: (_done, total) => seen.push(total) });
    expect(readFileSync(options.path).equals(data)).toBe(true);
    expect(seen.at(-1)).toBe(data.length);
    await download({ url: `${url}/f`, ...options });
    expect(requests).toHaveLength(1);
    expect(readdirSync(directory)).toEqual(["file.bin"]);
  });

  describe("through a proxy", () => {
    /** A proxy that counts its tunnels, and asks for a password if `user` is given. */
    async function proxy(user?: string) {
      const tunnels: string[] = [];
      const server = createHttpServer().on("connect", ({ url, headers }, socket) => {
        const given = headers["proxy-authorization"]?.replace("Basic ", "") ?? "";
        if (user !== undefined && Buffer.from(given, "base64").toString() !== user) {
          socket.end("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n");
          return;
        }
        tunnels.push(url!);
        const { hostname, port } = new URL(`http://${url}`);
        const onward = connect(Number(port), hostname, () => {
          socket.write("HTTP/1.1 200 OK\r\n\r\n");
          socket.pipe(onward).pipe(socket);
        });
        for (const end of [socket, onward]) end.on("error", () => {});
      });
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
      onTestFinished(() => {
        server.close();
        vi.unstubAllEnvs();
      });
      for (const name of ["NO_PROXY", "no_proxy"]) vi.stubEnv(name, "");
      return { tunnels, address: `127.0.0.1:${(server.address() as AddressInfo).port}` };
    }

    it("that the environment names, except for the hosts of NO_PROXY", async () => {
      const { url, requests } = await serve(respondWithRange(data));
      const { tunnels, address } = await proxy("me:p@ss");
      vi.stubEnv("HTTP_PROXY", `http://me:p%40ss@${address}`);
      const { path, ...options } = target();
      await download({ url: `${url}/f`, path, ...options });
      expect(readFileSync(path).equals(data)).toBe(true);
      expect(tunnels).toEqual([new URL(url).host]);
      vi.stubEnv("NO_PROXY", "127.0.0.1");
      await download({ url: `${url}/f`, ...options, path: `${path}.direct` });
      expect([tunnels.length, requests.length]).toEqual([1, 2]);
    });

    it("that refuses or is none: an error without its password", async () => {
      const { url, requests } = await serve(respondWithRange(data));
      const { address } = await proxy("me:secret");
      for (const [value, message] of [
        [`http://me:wrong@${address}`, /407/],
        ["socks5://me:wrong@127.0.0.1:1", /is not an http\(s\) address: set HTTPS_PROXY/],
        ["http://me:wrong@127.0.0.1:1", /ECONNREFUSED/],
      ] as const) {
        vi.stubEnv("HTTP_PROXY", value);
        const failed = download({ url: `${url}/f`, ...target(), attempts: 1 });
        await expectFailure(failed, "ERR_DOWNLOAD", message);
        await expect(failed).rejects.not.toThrow(/wrong/);
      }
      expect(requests).toEqual([]);
    });
  });

  it("trusts the certificates of NODE_EXTRA_CA_CERTS also if pip has its own", async () => {
    const { directory, path, ...options } = target();
    const certificate = (name: string) => {
      const [key, file] = [join(directory, `${name}.key`), join(directory, `${name}.pem`)];
      const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
      const subject = ["-subj", `/CN=${name}`, "-addext", "subjectAltName=IP:127.0.0.1"];
      execFileSync("openssl", ["req", "-x509", ...curve, ...subject, "-keyout", key, "-out", file], {
        stdio: "ignore",
      });
      return { key: readFileSync(key), cert: readFileSync(file), file };
    };
    const [own, other] = [certificate("own"), certificate("other")];
    const server = createServer(own, (_request, response) => response.end(data));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => {
      server.closeAllConnections();
      server.close();
      vi.unstubAllEnvs();
    });
    const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}/f`;
    vi.stubEnv("PIP_CERT", other.file);
    vi.stubEnv("NODE_EXTRA_CA_CERTS", other.file);
    await expectFailure(download({ url, path, ...options }), "ERR_DOWNLOAD", /self-signed certificate/);
    vi.stubEnv("NODE_EXTRA_CA_CERTS", own.file);
    await download({ url, path, ...options });
    expect(readFileSync(path).equals(data)).toBe(true);
  });

  it("resumes after a broken connection", async () => {
    let cuts = 2;
    const whole = respondWithRange(data);
    const { url, requests } = await serve((request, response) => {
      if (cuts-- <= 0) return whole(request, response);
      const start = Number(/\d+/.exec(request.headers.range ?? "0")?.[0]);
      const headers = { "content-length": data.length - start, "content-range": `bytes ${start}-` };
      response.writeHead(start > 0 ? 206 : 200, headers);
      // Its end arrives after the data; a reset could arrive before.
      response.write(data.subarray(start, start + 100_000), () => response.socket!.end());
    });
    const { path, ...options } = target();
    await download({ url: `${url}/f`, path, ...options });
    expect(readFileSync(path).equals(data)).toBe(true);
    expect(requests).toEqual(["GET /f", "GET /f bytes=100000-", "GET /f bytes=200000-"]);
  });

  it("resumes the download of an earlier process", async () => {
    const { url, requests } = await serve(respondWithRange(data));
    const { path, ...options } = target();
    write(`${path}.part`, data.subarray(0, 250_000));
    await download({ url: `${url}/f`, path, ...options });
    expect(readFileSync(path).equals(data)).toBe(true);
    expect(requests).toEqual(["GET /f bytes=250000-"]);
  });

  it("starts over if the partial file belongs to another file", async () => {
    const { url, requests } = await serve(respondWithRange(data));
    const { path, ...options } = target();
    write(`${path}.part`, randomBytes(1000));
    await download({ url: `${url}/f`, path, ...options });
    expect(readFileSync(path).equals(data)).toBe(true);
    expect(requests).toEqual(["GET /f bytes=1000-", "GET /f"]);
  });

  it("starts over if the server does not support ranges, or the partial file is too long", async () => {
    const { url } = await serve((_request, response) => response.end(data));
    const first = target();
    write(`${first.path}.part`, data.subarray(0, 1000));
    await download({ url: `${url}/f`, ...first });
    expect(readFileSync(first.path).equals(data)).toBe(true);

    const ranged = await serve(respondWithRange(data));
    const second = target();
    write(`${second.path}.part`, randomBytes(data.length + 5));
    await download({ url: `${ranged.url}/f`, ...second });
    expect(readFileSync(second.path).equals(data)).toBe(true);
  });

  it("rejects a wrong checksum and leaves nothing behind", async () => {
    const { url } = await serve(respondWithRange(data));
    const { directory, ...options } = target();
    const wrong = download({ url: `${url}/f`, ...options, checksum: sha256(Buffer.from("other")) });
    await expectFailure(wrong, "ERR_DOWNLOAD", /SHA-256 is .* expected/);
    expect(readdirSync(directory)).toEqual([]);
  });

  it("rejects a reply that is too long", async () => {
    const { url } = await serve((_request, response) => response.end(Buffer.concat([data, data])));
    const { directory, ...options } = target();
    const long = download({ url: `${url}/f`, ...options, bytes: data.length });
    await expectFailure(long, "ERR_DOWNLOAD", /longer than/);
    expect(readdirSync(directory)).toEqual([]);
  });

  it("replaces a file with the right name and the wrong bytes", async () => {
    const { url } = await serve(respondWithRange(data));
    const options = target();
    write(options.path, "torn");
    await download({ url: `${url}/f`, ...options });
    expect(statSync(options.path).size).toBe(data.length);
  });

  it("retries a busy server and gives up on a missing file at once", async () => {
    let busy = 2;
    const whole = respondWithRange(data);
    const { url, requests } = await serve((request, response) => {
      if (request.url === "/none") return response.writeHead(404).end();
      return busy-- > 0 ? response.writeHead(503).end() : whole(request, response);
    });
    const options = target();
    await download({ url: `${url}/f`, ...options });
    expect(requests).toHaveLength(3);
    const missing = target();
    await expectFailure(download({ url: `${url}/none`, ...missing }), "ERR_DOWNLOAD", /HTTP 404/);
    expect(requests).toHaveLength(4);
    expect(existsSync(missing.path)).toBe(false);
  });

  it("gives up if a server without ranges breaks off again and again, wherever it does", async () => {
    const { url, requests } = await serve((_request, response) => {
      response.writeHead(200, { "content-length": data.length });
      const sent = requests.length % 2 === 0 ? 50_000 : 60_000;
      response.write(data.subarray(0, sent), () => response.socket!.end());
    });
    await expectFailure(download({ url: `${url}/f`, ...target() }), "ERR_DOWNLOAD", /f: /);
    expect(requests.length).toBeLessThan(10);
  });

  it("names no user or password of an address", () => {
    for (const url of ["https://me:secret@host/f", "https://me:s@ecret@host/f", "https://s@ecret@host"])
      expect(redact(url)).toMatch(/^https:\/\/host(\/f)?$/);
    for (const url of ["https://host/me@you", "https://host/a//b@c"]) expect(redact(url)).toBe(url);
  });

  it("counts a stalled connection as cut, and follows redirects", async () => {
    let stalls = 1;
    const whole = respondWithRange(data);
    const { url } = await serve((request, response) => {
      if (request.url === "/from") return response.writeHead(302, { location: "/to" }).end();
      if (stalls-- > 0) {
        response.writeHead(200, { "content-length": data.length });
        return response.write(data.subarray(0, 10_000));
      }
      return whole(request, response);
    });
    const { path, ...options } = target();
    await download({ url: `${url}/from`, path, ...options, stallMs: 100 });
    expect(readFileSync(path).equals(data)).toBe(true);
  });
});
