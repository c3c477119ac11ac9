/**
 * Attributes of objects that can be asked about. `question` is the scripted guesser's wording; the
 * frames after it are other forms of the question (questions.ts describes how a question becomes a
 * frame):
 *
 *   is    "Is it …?"                    has  "Does it have …?"      does  "Does it …?", "Can it …?"
 *   you   "Can you …?", "Do people …?"  use  "Is it used for …ing?" at    "Is it found in …?"
 *   of    "Is it made of …?"
 *
 * `otherwise` is the answer for objects whose classes do not define it: "no" for rare, obvious
 * properties, "unknown" for disputable ones.
 */

export type Answer = "yes" | "no" | "unknown";

export interface Attribute {
  question: string;
  otherwise: Answer;
  is?: string;
  has?: string;
  does?: string;
  you?: string;
  use?: string;
  at?: string;
  of?: string;
  /** Frames whose answer is the opposite: "Is it dead?" for "Is it alive?". */
  not?: string;
}

const no = (question: string, frames: Omit<Attribute, "question" | "otherwise"> = {}): Attribute => ({
  question,
  otherwise: "no",
  ...frames,
});
const open = (question: string, frames: Omit<Attribute, "question" | "otherwise"> = {}): Attribute => ({
  question,
  otherwise: "unknown",
  ...frames,
});
/** A room or place where the object is found, kept or used. */
const place = (where: string, otherwise: Answer, at: string): Attribute => ({
  question: `Is it usually found ${where}?`,
  otherwise,
  at,
});
const material = (name: string, adjective: string): Attribute => ({
  question: `Is it made mostly of ${name}?`,
  otherwise: "no",
  of: name,
  is: adjective,
});
const colour = (name: string, also = ""): Attribute => ({
  question: `Is it typically ${name}?`,
  otherwise: "unknown",
  is: `${name}, ${name} in color, ${name} in colour, ${name} colored, ${name} coloured${also}`,
});

export const attributes = {
  // ---- kinds
  animal: no("Is it an animal?", { is: "animal, creature, critter, beast, living animal" }),
  mammal: no("Is it a mammal?", { is: "mammal" }),
  bird: no("Is it a bird?", { is: "bird" }),
  fish: no("Is it a fish?", { is: "fish" }),
  insect: no("Is it an insect?", { is: "insect" }),
  reptile: no("Is it a reptile?", { is: "reptile" }),
  pet: no("Is it commonly kept as a pet?", {
    is: "pet, house pet, domestic pet, kept as pet",
    you: "keep it as pet",
  }),
  farmAnimal: no("Is it a farm animal?", { is: "farm animal, livestock, raised on farm, raised on farms" }),
  plant: no("Is it a plant?", { is: "plant" }),
  tree: no("Is it a tree?", { is: "tree" }),
  flower: no("Is it a flower?", { is: "flower" }),
  food: no("Is it a food?", { is: "food, food item, foodstuff" }),
  fruit: no("Is it a fruit?", { is: "fruit" }),
  vegetable: no("Is it a vegetable?", { is: "vegetable, veggie" }),
  meat: no("Is it meat?", { is: "meat, kind of meat" }),
  dairy: no("Is it made from milk?", { is: "dairy, dairy product, milk product", of: "milk" }),
  baked: no("Is it baked in an oven?", { is: "baked, baked good, baked goods, baked in oven" }),
  dessert: no("Is it a dessert?", { is: "dessert, sweet treat, candy or sweet" }),
  drink: no("Is it a drink?", { is: "drink, beverage, drinkable", you: "drink it" }),
  vehicle: no("Is it a vehicle?", {
    is: "vehicle, means of transportation, mode of transportation, means of transport, mode of transport, transportation",
    use: "transportation, transport, transporting people, traveling, travelling",
  }),
  boat: no("Is it a boat?", { is: "boat, watercraft, ship, vessel" }),
  aircraft: no("Is it an aircraft?", { is: "aircraft, flying machine, flying vehicle" }),
  tool: no("Is it a tool?", { is: "tool, hand tool, work tool" }),
  furniture: no("Is it a piece of furniture?", { is: "furniture, furniture item, furnishing" }),
  clothing: no("Is it a piece of clothing?", {
    is: "clothing, clothes, garment, clothing item, article of clothing, apparel",
  }),
  footwear: no("Is it worn on the feet?", {
    is: "footwear, shoe, worn on feet",
    you: "wear it on your feet, wear it on their feet",
  }),
  headwear: no("Is it worn on the head?", {
    is: "headwear, worn on head",
    you: "wear it on your head, wear it on their head, wear it on their heads",
  }),
  jewelry: no("Is it a piece of jewelry?", { is: "jewelry, jewellery" }),
  worn: no("Can you wear it?", {
    is: "worn, wearable, worn on body, worn by people",
    you: "wear it, put it on your body, wear it on your body",
  }),
  instrument: no("Is it a musical instrument?", {
    is: "musical instrument, instrument",
    use: "making music, playing music, music",
    you: "make music with it, play music with it, play music on it",
  }),
  building: no("Is it a building?", { is: "building, structure with roof, kind of building" }),
  bodyPart: no("Is it a part of the human body?", {
    is: "body part, part of body, part of human body, human body part, part of your body",
  }),
  electronic: no("Is it an electronic device?", {
    is: "electronic, electronic device, electronics, electronic item, gadget, electronic gadget",
  }),
  appliance: no("Is it a household appliance?", { is: "appliance, household appliance, home appliance" }),
  sports: no("Is it used in a sport?", {
    is: "sports equipment, sporting equipment, sport equipment, sporting good, used in sport, used in sports, sports item, sports related, related to sports",
    use: "sport, sports, playing sports, playing sport",
    you: "use it in sports, play sports with it",
  }),
  ball: no("Is it a ball?", { is: "ball" }),
  toy: no("Is it a toy?", { is: "toy, plaything, children toy, kid toy, child toy" }),
  game: no("Do people play a game with it?", {
    is: "game, used in game, part of game",
    use: "playing games, games, playing game",
    you: "play game with it, play games with it",
  }),
  kitchenware: no("Is it a kitchen utensil?", {
    is: "utensil, kitchen utensil, kitchenware, kitchen tool, cooking utensil",
  }),
  container: no("Is it a container?", {
    is: "container, receptacle",
    use: "storage, storing things, holding things, carrying things, containing things, storing, store things",
    does: "hold things, contain things, store things",
    you: "put things in it, put things inside it, store things in it, carry things in it, keep things in it",
  }),
  holdsLiquid: no("Is it made to hold liquid?", {
    does: "hold liquid, hold liquids, hold water, contain liquid, contain water",
    use: "holding liquid, holding liquids, holding water, storing liquid, storing water",
    you: "put water in it, pour liquid into it, put liquid in it",
  }),
  weapon: no("Is it a weapon?", { is: "weapon", use: "fighting, combat" }),
  stationery: no("Is it an office supply?", { is: "office supply, stationery, office item" }),
  landscape: no("Is it a natural feature of the earth?", {
    is: "landform, geographical feature, geographic feature, natural feature, natural feature of earth, part of landscape, place in nature, natural formation",
  }),
  celestial: no("Is it seen in the sky?", {
    is: "in sky, up in sky, seen in sky, found in sky",
    at: "sky",
    you: "see it in sky",
  }),

  // ---- what it is like
  alive: no("Is it alive?", {
    is: "alive, living, living thing, living being, living creature, living organism, organism, animate",
    does: "live",
    not: "dead, inanimate, inanimate object, nonliving, non living, lifeless, non living thing, nonliving thing",
  }),
  manMade: open("Is it made by people?", {
    is: "man made, manmade, made by people, made by humans, made by man, artificial, human made, manufactured, artificial object, man made object, manmade object, made in factory, manufactured item",
    not: "natural, found in nature, naturally occurring, natural object, occur naturally, part of nature, natural thing, nature",
  }),
  edible: no("Can you eat it?", {
    is: "edible, eaten, something to eat, eatable, something people eat, something you eat",
    you: "eat it, consume it",
    does: "get eaten",
  }),
  sweet: no("Does it taste sweet?", { is: "sweet, sugary", does: "taste sweet" }),
  breakfast: no("Do people often eat it for breakfast?", {
    is: "breakfast food, eaten for breakfast, eaten at breakfast",
    you: "eat it for breakfast, have it for breakfast",
  }),
  peel: no("Do you peel it before eating it?", { you: "peel it, need to peel it", has: "peel" }),
  onTree: no("Does it grow on a tree?", { does: "grow on tree, grow on trees, come from tree" }),
  underground: no("Does it grow underground?", {
    does: "grow underground, grow under ground, grow in ground",
    is: "root vegetable, grown underground",
  }),
  metal: material("metal", "metal, metallic"),
  wood: material("wood", "wooden, wood"),
  plastic: material("plastic", "plastic"),
  fabric: material("fabric", "fabric, cloth, textile"),
  glass: material("glass", "glass"),
  paper: material("paper", "paper"),
  stone: material("stone", "stone, rock"),
  leather: material("leather", "leather"),
  rubber: material("rubber", "rubber"),
  soft: no("Is it soft?", {
    is: "soft, soft to touch, fluffy, squishy",
    not: "hard, hard to touch, solid and hard",
  }),
  sharp: no("Is it sharp?", {
    is: "sharp, pointy, pointed",
    has: "sharp edge, sharp edges, blade, sharp point, sharp blade, sharp part, sharp parts",
  }),
  round: no("Is it round?", {
    is: "round, circular, spherical, round in shape, round shaped, shaped like ball",
  }),
  long: no("Is it long and thin?", { is: "long, long thin, thin, stick shaped, elongated" }),
  flat: no("Is it flat?", { is: "flat" }),
  red: colour("red"),
  orange: colour("orange"),
  yellow: colour("yellow"),
  green: colour("green"),
  brown: colour("brown"),
  black: colour("black"),
  white: colour("white"),
  grey: colour("grey", ", gray, gray in color, gray colored"),
  dangerous: no("Is it dangerous?", { is: "dangerous", not: "harmless" }),
  expensive: open("Is it expensive?", {
    is: "expensive, costly",
    does: "cost lot, cost lot of money",
    not: "cheap, inexpensive",
  }),
  children: open("Do children often use it?", {
    is: "used by children, used by kids, often used by children",
    you: "children use it, kids use it",
  }),

  // ---- size; objects.ts has one number per object
  pocket: open("Does it fit in a pocket?", {
    is: "tiny, small enough to fit in pocket, pocket sized",
    does: "fit in pocket, fit in your pocket",
    you: "put it in your pocket, fit it in your pocket, carry it in your pocket",
  }),
  hand: open("Can you hold it in one hand?", {
    is: "small, small enough to hold in one hand, held in one hand, small enough to be held in one hand, handheld, small enough to hold in your hand, hand sized",
    does: "fit in hand, fit in your hand, fit in one hand",
    you: "hold it in one hand, hold it in your hand, hold it with one hand, pick it up with one hand",
  }),
  breadbox: open("Is it bigger than a breadbox?", { is: "big, large" }),
  person: open("Is it bigger than a person?", { is: "very big, very large, huge" }),
  car: open("Is it bigger than a car?"),
  house: open("Is it bigger than a house?"),
  heavy: open("Is it too heavy for one person to lift?", {
    is: "heavy, too heavy to lift",
    not: "light weight, lightweight, portable, easy to carry, easy to lift",
  }),

  // ---- parts
  legs: no("Does it have legs?", { has: "leg" }),
  fourLegs: no("Does it have four legs?", {
    has: "four leg, 4 leg, four feet, four paw",
    is: "four legged",
    does: "walk on four legs",
  }),
  wings: no("Does it have wings?", { has: "wing" }),
  feathers: no("Does it have feathers?", { has: "feather" }),
  fur: no("Does it have fur?", { has: "fur, hair", is: "furry, hairy" }),
  tail: no("Does it have a tail?", { has: "tail" }),
  horns: no("Does it have horns?", { has: "horn" }),
  shell: no("Does it have a hard shell?", { has: "shell, hard shell" }),
  pattern: no("Does it have stripes or spots?", {
    has: "stripe, spot, stripes or spots, stripes or spot",
    is: "striped, spotted",
  }),
  wheels: no("Does it have wheels?", { has: "wheel", does: "roll on wheels" }),
  engine: no("Does it have an engine?", { has: "engine", is: "engine powered" }),
  screen: no("Does it have a screen?", { has: "screen, display" }),
  buttons: no("Does it have buttons to press?", {
    has: "button, buttons to press, button to press, key to press, keys to press",
  }),
  handle: no("Does it have a handle?", { has: "handle" }),
  strings: no("Does it have strings?", { has: "string", is: "string instrument, stringed instrument" }),
  lid: no("Does it have a lid?", { has: "lid" }),
  pages: no("Can you read it?", {
    is: "book, readable, something you read, something to read",
    you: "read it",
    use: "reading",
    has: "page",
  }),

  // ---- what it does
  movesItself: no("Can it move by itself?", {
    does: "move by itself, move on its own, move itself",
    is: "able to move by itself, able to move",
  }),
  flies: no("Can it fly?", { does: "fly, fly in air", is: "able to fly" }),
  swims: no("Does it swim?", { does: "swim", is: "able to swim" }),
  eatsMeat: no("Does it eat meat?", {
    does: "eat meat, eat other animals, hunt, hunt other animals",
    is: "carnivore, carnivorous, predator, meat eater",
  }),
  electricity: no("Does it need electricity?", {
    does: "need electricity, use electricity, run on electricity, require electricity, need power, need electricity to work, need electricity to function, require electricity to work, work with electricity",
    is: "electric, electrical, powered by electricity, electrical device, electrically powered",
    you: "need electricity to use it",
  }),
  sound: no("Does it make a sound?", {
    does: "make sound, make noise, make sounds, make noises, produce sound, produce noise",
    not: "silent",
  }),
  light: no("Does it give off light?", {
    does: "give off light, produce light, give light, make light, emit light, glow, shine, light up",
    is: "source of light, light source",
    use: "lighting, giving light, light",
  }),
  heat: no("Does it get hot when it is used?", {
    does: "get hot, produce heat, give off heat, make heat, get hot when it is used, heat up",
    is: "hot",
    use: "heating, heating things",
  }),
  cold: no("Is it cold?", { is: "cold, frozen, kept cold, served cold", does: "need to be kept cold" }),

  // ---- what people do with it
  ride: no("Can it carry people?", { does: "carry people, carry passengers, carry person", you: "ride it" }),
  inside: no("Can people go inside it?", { you: "go inside it, go in it, enter it, walk inside it" }),
  sit: no("Can you sit on it?", { you: "sit on it, sit in it", use: "sitting, sitting on, seating" }),
  cuts: no("Is it used for cutting?", {
    use: "cutting, cutting things, cut, cut things, slicing, cutting food",
    you: "cut with it, cut things with it",
    does: "cut, cut things",
  }),
  writes: no("Is it used for writing?", {
    use: "writing, drawing, write, writing things, making marks",
    you: "write with it, draw with it",
  }),
  cooks: no("Is it used for cooking?", {
    use: "cooking, preparing food, cook, cook food, cooking food, making food, food preparation, prepare food, make food",
    you: "cook with it, cook food with it",
  }),
  eatWith: no("Is it used for eating?", { use: "eating, eating food, eat, eat food", you: "eat with it" }),
  drinkFrom: no("Is it used for drinking?", {
    use: "drinking, drink, drinking water",
    you: "drink from it, drink out of it, drink with it",
  }),
  cleans: no("Is it used for cleaning?", {
    use: "cleaning, washing, cleaning things, clean, clean things, washing things",
    you: "clean with it, clean things with it, wash with it",
  }),
  measures: no("Is it used for measuring?", {
    use: "measuring, measuring things, measure, measure things, measuring something",
    does: "measure things, measure something",
  }),
  communicates: no("Is it used for communicating?", {
    use: "communicating, communication, communicate, talking to people, sending messages, talking to other people",
    you: "communicate with it, talk to people with it",
  }),
  fastens: no("Is it used for holding things together?", {
    use: "holding things together, fastening things, fastening, attaching things, hold things together",
    does: "hold things together",
  }),
  opens: no("Can you open it?", { you: "open it, close it, open and close it", does: "open" }),
  decoration: no("Is it used for decoration?", {
    is: "decorative, decoration, ornament",
    use: "decoration, decorating",
  }),

  // ---- where
  indoors: place("indoors", "unknown", "indoors, inside, room, inside building"),
  home: place(
    "in a home",
    "no",
    "house, home, household, houses, homes, inside house, inside home, around house",
  ),
  outdoors: place("outdoors", "unknown", "outdoors, outside, out of doors"),
  kitchen: place("in a kitchen", "no", "kitchen, kitchens"),
  bathroom: place("in a bathroom", "no", "bathroom, bathrooms"),
  bedroom: place("in a bedroom", "no", "bedroom, bedrooms"),
  livingRoom: place("in a living room", "no", "living room, living rooms, lounge"),
  office: place("in an office", "no", "office, offices"),
  school: place("at a school", "no", "school, schools, classroom, classrooms"),
  garage: place("in a garage", "no", "garage, workshop, garages, toolbox, tool box"),
  garden: place("in a garden", "no", "garden, yard, gardens, backyard, lawn"),
  farm: place("on a farm", "no", "farm, farms"),
  street: place("on a street", "no", "street, road, roads, streets, city streets, on road"),
  water: place("in the water", "no", "water, underwater, in water, under water"),
  ocean: place("in the ocean", "no", "ocean, sea, oceans, seas"),
  hot: place(
    "in a hot country",
    "unknown",
    "hot countries, hot climate, hot climates, tropics, tropical climate, tropical climates, tropical country, warm climate",
  ),
} satisfies Record<string, Attribute>;

export type AttributeName = keyof typeof attributes;
export const attributeNames = Object.keys(attributes) as AttributeName[];

/** Attributes that depend on size, with the threshold at which the answer changes. */
export const sizeAttributes: Partial<Record<AttributeName, { from: number; larger: Answer }>> = {
  pocket: { from: 1.5, larger: "no" },
  hand: { from: 2.5, larger: "no" },
  breadbox: { from: 3, larger: "yes" },
  person: { from: 4, larger: "yes" },
  car: { from: 5, larger: "yes" },
  house: { from: 6, larger: "yes" },
};

/** Sizes closer than this count as equal. */
export const sameSize = 0.15;

export const colours = ["red", "orange", "yellow", "green", "brown", "black", "white", "grey"] as const;
