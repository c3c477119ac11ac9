/**
 * fetch for an MCP server at an address. The server may be hostile: redirects are followed within
 * its own origin only, because the headers may contain a key, and replies have a maximum size.
 */

/** Maximum size of a reply; that of a message over stdio is 10 MiB, a limit of the SDK. */
const maxReplyBytes = 16 << 20;
const maxRedirects = 5;
const redirects = [301, 302, 303, 307, 308];

/** Throws an error that names the other origin, but no path and no query: these may contain a key. */
export async function fetchFromServer(address: string | URL, init: RequestInit = {}): Promise<Response> {
  let url = new URL(address);
  for (let hop = 0; hop <= maxRedirects; hop++) {
    const reply = await fetch(url, { ...init, redirect: "manual" });
    const location = reply.headers.get("location");
    if (location === null || !redirects.includes(reply.status)) return withinLimit(reply);
    await reply.body?.cancel();
    const next = new URL(location, url);
    if (next.origin !== url.origin)
      throw new Error(`it redirects to another server, ${next.origin}. If that is right, use its address`);
    url = next;
  }
  throw new Error(`it redirects more than ${maxRedirects} times`);
}

/** The same reply. Reading it fails beyond the maximum size. */
function withinLimit(reply: Response): Response {
  if (reply.body === null) return reply;
  let bytes = 0;
  const limit = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      bytes += chunk.length;
      if (bytes > maxReplyBytes) controller.error(new Error(`a reply has more than ${maxReplyBytes} bytes`));
      else controller.enqueue(chunk);
    },
  });
  const { status, statusText, headers } = reply;
  return new Response(reply.body.pipeThrough(limit), { status, statusText, headers });
}
