export { type TauBenchOptions, tauBench } from "./environment.ts";
export type { UserOption } from "./open-user.ts";
export {
  type RetailSynthesis,
  type SynthesizeRetailOptions,
  synthesizeRetail,
  type TauBenchTaskRecord,
} from "./synthesize.ts";
export type { TauBenchCall, TauBenchTask } from "./tasks.ts";
export type { Conversation, ConversationOptions, User } from "./user.ts";
export type { SimulatedUserOptions } from "./user-simulated.ts";
