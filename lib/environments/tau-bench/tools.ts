/** Makes the tools of both domains. */

import type { Tool } from "./database.ts";

/** `parameters` are names between spaces, in order. */
export function tool(name: string, parameters: string, run: Tool["run"]): Tool {
  return { name, parameters: parameters.split(" ").filter((parameter) => parameter !== ""), run };
}
