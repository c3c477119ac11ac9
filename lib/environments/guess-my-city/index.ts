export { type GuessMyCityOptions, type GuessMyCityTask, guessMyCity } from "./environment.ts";
export { type CityGuesserOptions, cityGuesser } from "./guesser.ts";
