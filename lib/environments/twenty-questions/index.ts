export { type TwentyQuestionsOptions, type TwentyQuestionsTask, twentyQuestions } from "./environment.ts";
export { type GuesserOptions, scriptedGuesser } from "./guesser.ts";
export type { Oracle, OracleReply } from "./oracle.ts";
