/** A headless browser, where Debian's Chromium is installed. */

import { existsSync } from "node:fs";
import { type Browser, chromium, type Page } from "playwright-core";

const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(
  (path) => existsSync(path),
);

/** Tests in a browser are skipped without one, but not in CI, where nobody reads the message. */
export const hasBrowser = executablePath !== undefined;
if (!hasBrowser && process.env.CI) throw new Error("CI needs Chromium (apt-get install chromium)");
if (!hasBrowser) console.warn("SKIPPED: no Chromium is installed (apt-get install chromium)");

export function openBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

/**
 * A page that collects its errors: exceptions, refused loads, violations of its policy.
 */
export async function openPage(
  browser: Browser,
  viewport = { width: 1280, height: 800 },
): Promise<{ page: Page; faults: string[]; requests: string[] }> {
  const page = await browser.newPage({ viewport });
  const faults: string[] = [];
  const requests: string[] = [];
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("request", (request) => requests.push(request.url()));
  page.setDefaultTimeout(20_000);
  return { page, faults, requests };
}
