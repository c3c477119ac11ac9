// Tells what the servers of this process have acknowledged, at the moment when the answer is sent.
import diagnostics from "node:diagnostics_channel";

/** Calls `told` with the header `x-acknowledge` of each request that is answered with 200 or 202. */
export function onAcknowledged(told) {
  diagnostics.subscribe("http.server.response.finish", ({ request, response }) => {
    const line = request.headers["x-acknowledge"];
    if (line !== undefined && [200, 202].includes(response.statusCode)) told(line);
  });
}
