#!/usr/bin/env node
// A registry on this machine that has one tarball as nlac, and passes requests for other packages
// on to npm's configured registry. As a program, it serves until it is stopped:
//   node scripts/local-registry.mjs TARBALL        prints the address
//   npm_config_registry=ADDRESS npm install nlac
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The manifest of a tarball that `npm pack` made. */
export function manifestOf(tarball) {
  return JSON.parse(execFileSync("tar", ["xzOf", tarball, "package/package.json"], { encoding: "utf8" }));
}

/** `fetch`, repeated twice after a broken connection. */
async function fetchAgain(url, options, tries = 3) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (tries <= 1) throw error;
    return fetchAgain(url, options, tries - 1);
  }
}

/**
 * Starts a registry that offers the tarball as nlac. Returns its HTTP server and its address, with
 * a slash at the end.
 */
export async function startRegistry(tarball) {
  const stdout = execFileSync("npm", ["config", "get", "registry"], { encoding: "utf8" });
  const upstream = stdout.trim().replace(/\/$/, "");
  const bytes = readFileSync(tarball);
  const manifest = manifestOf(tarball);
  const { version } = manifest;
  const digest = (algorithm, encoding) => createHash(algorithm).update(bytes).digest(encoding);
  const server = createServer(async (request, response) => {
    try {
      const address = `http://127.0.0.1:${server.address().port}/`;
      if (["/nlac", "/nlac/latest", `/nlac/${version}`].includes(request.url)) {
        const time = new Date().toISOString();
        const dist = {
          tarball: `${address}nlac/-/nlac-${version}.tgz`,
          shasum: digest("sha1", "hex"),
          integrity: `sha512-${digest("sha512", "base64")}`,
        };
        const described = { ...manifest, dist };
        const packument = {
          name: "nlac",
          "dist-tags": { latest: version },
          time: { created: time, modified: time, [version]: time },
          versions: { [version]: described },
        };
        const body = request.url === "/nlac" ? packument : described;
        response.setHeader("content-type", "application/json").end(JSON.stringify(body));
      } else if (request.url === `/nlac/-/nlac-${version}.tgz`) {
        response.setHeader("content-type", "application/octet-stream").end(bytes);
      } else {
        const { accept = "*/*" } = request.headers;
        const answer = await fetchAgain(upstream + request.url, { headers: { accept } });
        const type = answer.headers.get("content-type") ?? "application/octet-stream";
        response.writeHead(answer.status, { "content-type": type });
        response.end(Buffer.from(await answer.arrayBuffer()));
      }
    } catch (error) {
      response.writeHead(502).end(String(error));
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}/` };
}

/**
 * Variables that make every client use the registry at `address`, accept a package of today, run no
 * install script, and keep its caches in `scratch`. `scratch` must contain an empty file npmrc.
 */
export function clientSettings(address, scratch) {
  return {
    npm_config_registry: address,
    npm_config_userconfig: join(scratch, "npmrc"),
    npm_config_cache: join(scratch, "npm-cache"),
    npm_config_ignore_scripts: "true",
    pnpm_config_registry: address,
    pnpm_config_minimum_release_age: "0",
    pnpm_config_store_dir: join(scratch, "pnpm-store"),
    pnpm_config_ignore_scripts: "true",
    YARN_REGISTRY: address,
    YARN_IGNORE_SCRIPTS: "true",
    YARN_NPM_REGISTRY_SERVER: address,
    YARN_NPM_MINIMAL_AGE_GATE: "0",
    YARN_UNSAFE_HTTP_WHITELIST: "127.0.0.1",
    YARN_NODE_LINKER: "node-modules",
    YARN_ENABLE_IMMUTABLE_INSTALLS: "false",
    YARN_ENABLE_SCRIPTS: "false",
    YARN_ENABLE_TELEMETRY: "0",
    YARN_ENABLE_GLOBAL_CACHE: "false",
    YARN_CACHE_FOLDER: join(scratch, "yarn-cache"),
    BUN_CONFIG_REGISTRY: address,
    BUN_INSTALL_CACHE_DIR: join(scratch, "bun-cache"),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const tarball = process.argv[2];
  if (tarball === undefined || tarball.startsWith("-")) {
    console.log("usage: node scripts/local-registry.mjs TARBALL");
  } else console.log((await startRegistry(resolve(tarball))).address);
}
