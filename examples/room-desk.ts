/** A desk that books meeting rooms. Try it: nlac env check examples/room-desk.ts */
import { callAction, defineEnvironment, ToolError, tool } from "nlac/environments";
import { z } from "zod";

interface Request {
  day: string;
  people: number;
}

interface Room {
  room: string;
  seats: number;
}

interface Desk {
  free: Room[];
  booked?: Room;
}

const days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"] as const;
const rooms: Room[] = [
  { room: "Oak", seats: 2 },
  { room: "Elm", seats: 4 },
  { room: "Ash", seats: 8 },
  { room: "Fir", seats: 12 },
];

/** The bits of the seed say which rooms are taken; the largest never is. */
const freeRooms = (seed: number) => rooms.filter((_, i) => i === rooms.length - 1 || (seed >> i) % 2 === 0);
const smallest = (free: Room[], people: number) => free.find(({ seats }) => seats >= people)!;
const requests = (sizes: number[]): Request[] =>
  days.flatMap((day) => sizes.map((people) => ({ day, people })));

export default defineEnvironment<Request, Desk>({
  name: "room-desk",
  system: "You book meeting rooms. Look which rooms are free, then book the smallest that seats everybody.",
  tasks: { train: requests([2, 4, 7, 10]), test: requests([3, 8]) },
  taskId: ({ day, people }) => `${day}-${people}`,
  prompt: ({ day, people }) => `We are ${people} and need a room on ${day}.`,
  start: (_, { seed }) => ({ free: freeRooms(seed) }),
  tools: [
    tool({
      name: "free_rooms",
      description: "Lists the rooms that are free on a day, with their seats.",
      parameters: z.object({ day: z.enum(days) }),
      handler: (_, { state }) => state.free,
    }),
    tool({
      name: "book",
      description: "Books a room.",
      parameters: z.object({ room: z.string(), day: z.enum(days) }),
      handler: ({ room, day }, { state, end }) => {
        state.booked = state.free.find((free) => free.room === room);
        if (state.booked === undefined) throw new ToolError(`${room} is not free on ${day}`);
        end();
        return `${room} is booked for ${day}.`;
      },
    }),
  ],
  score: ({ free, booked }, { people }) => (booked === smallest(free, people) ? 1 : 0),
  maxTurns: 4,
  // For the warm-up of a model that does not know the output formats.
  demonstrate: ({ day, people }, { free }) => {
    const { room } = smallest(free, people);
    return [
      {
        action: callAction("free_rooms", { day }, `I look which rooms are free on ${day}.`),
        future: "The free rooms are listed. Then the smallest that seats everybody is booked.",
      },
      {
        action: callAction("book", { room, day }, `${room} is the smallest for ${people}.`),
        future: `${room} is booked, and everybody has a seat.`,
      },
    ];
  },
});
