/** Starts to listen, for every server of nlac. */

import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { NlacError } from "../base/errors.ts";

/** Returns the port, which the system chooses for port 0. Throws ERR_IO, for example for one in use. */
export async function listenOn(server: Server, host: string, port: number): Promise<number> {
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject).listen(port, host, resolve);
    });
  } catch (error) {
    const reason =
      (error as NodeJS.ErrnoException).code === "EADDRINUSE"
        ? `another program listens on port ${port} of ${host} (EADDRINUSE). Choose another port, or 0 for a free one`
        : (error as Error).message;
    throw new NlacError("ERR_IO", `Cannot listen on ${host}:${port}: ${reason}.`, { cause: error });
  }
  return (server.address() as AddressInfo).port;
}
