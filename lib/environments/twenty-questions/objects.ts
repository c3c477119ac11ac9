/**
 * The objects of the game and their properties. A class defines traits that its objects share; a
 * line adds an object's own:
 *
 *   name (other names): trait trait …
 *
 * A trait is an attribute (yes), `!attribute` (no), `?attribute` (people would differ, or it
 * depends), `s` and a number (its size, below), `c:red/green` (its typical colours; several: each
 * depends), or `@class`. Later traits override earlier ones. An attribute that is not mentioned has
 * its own `otherwise` (attributes.ts).
 *
 * Sizes: 1 fits in a pocket, 2 in one hand, 2.8 needs two hands, 3 a breadbox, 3.5 up to a person,
 * 4 a person, 4.5 between a person and a car, 5 a car, 5.5 larger, 6 a house, 7 larger still. At
 * 1.5, 2.5, 3, 4, 5 and 6 the question for that threshold cannot be answered.
 */

export const classes: Record<string, string> = {
  // ---- living things
  animal:
    "animal alive !manMade legs tail movesItself ?sound ?dangerous !expensive !children ?edible outdoors ?indoors ?eatsMeat ?swims ?pattern ?hot ?soft",
  mammal: "@animal mammal fourLegs fur soft !eatsMeat sound",
  wildMammal: "@mammal !indoors",
  bird: "@animal bird wings feathers flies ?celestial ?garden !swims !pattern sound !indoors",
  fish: "@animal fish swims water !legs !sound edible !indoors ?eatsMeat !soft !dangerous",
  insect: "@animal insect !tail !edible ?eatsMeat !swims s1 !soft garden !dangerous !sound",
  reptile: "@animal reptile fourLegs !sound !edible !soft ?pattern hot",
  plant: "plant alive !manMade outdoors ?indoors !expensive !children ?decoration ?garden ?hot",
  tree: "@plant tree s6 wood !indoors green !edible ?decoration",
  flower: "@plant flower s2 decoration garden ?soft !edible indoors ?home",

  // ---- food
  food: "food edible !expensive kitchen indoors !outdoors ?children ?soft !hot ?breakfast s2 !heat home",
  produce: "@food !manMade ?alive ?garden farm ?plant outdoors !baked !breakfast",
  fruit: "@produce fruit sweet ?breakfast onTree hot",
  vegetable: "@produce vegetable garden !sweet !hot",
  dish: "@food manMade ?heat !sweet !breakfast soft",
  sweets: "@food manMade sweet dessert soft ?children !breakfast",
  drink:
    "drink manMade kitchen indoors !outdoors !expensive ?edible ?children !container s2 ?hand !hot ?cold home",

  // ---- things
  thing: "manMade !hot ?plastic ?metal !expensive ?children ?home",
  vehicle:
    "@thing vehicle ?electricity ?heat wheels engine metal !plastic ride inside sit ?movesItself sound heavy outdoors !indoors expensive !children s5 ?dangerous opens ?light ?garage street !home",
  boat: "@vehicle boat !wheels water !street !garage !opens !light",
  tool: "@thing tool handle metal !plastic garage !children s2 indoors ?outdoors ?dangerous ?home",
  furniture:
    "@thing furniture ?wood !plastic ?metal legs fourLegs indoors ?outdoors !movesItself s3.7 ?heavy ?office ?school livingRoom ?bedroom ?children ?expensive home",
  clothing: "@thing clothing worn fabric soft !metal !plastic ?bedroom indoors ?outdoors s2 !school home",
  shoe: "@clothing footwear !fabric ?soft s2 outdoors indoors ?leather ?rubber",
  hat: "@clothing headwear ?indoors outdoors round ?home",
  jewelry: "@thing jewelry worn metal !plastic decoration s1 expensive !children indoors ?bedroom ?home",
  instrument: "@thing instrument sound !plastic indoors ?school !children ?expensive s3.3 ?livingRoom ?home",
  electronic:
    "@thing electronic electricity buttons plastic ?metal indoors !outdoors expensive ?children ?office ?school ?light ?sound ?heat ?bedroom ?livingRoom ?home",
  appliance:
    "@thing appliance electricity metal ?plastic buttons indoors !outdoors !children ?expensive ?sound s3.5 home ?electronic",
  kitchenware: "@thing kitchenware kitchen indoors !outdoors !children metal ?plastic s2 home",
  bathing: "@thing bathroom indoors !outdoors ?cleans s2 home",
  office: "@thing stationery office school indoors !outdoors s1 children ?home",
  sport: "@thing sports ?plastic outdoors ?indoors children ?school s2 ?game ?home",
  toy: "@thing toy children indoors ?outdoors bedroom ?livingRoom ?school plastic !metal s2 home",
  building:
    "@thing building inside opens outdoors !indoors heavy expensive !children s6 ?stone ?wood !plastic ?metal ?street ?electricity ?light !home",
  nature: "landscape !manMade outdoors !indoors !expensive !children s7 heavy ?hot",
  body: "bodyPart ?alive !manMade ?indoors ?outdoors !expensive !children ?movesItself !edible s2 ?home",
  container: "@thing container opens indoors ?outdoors s2.8 ?home",
  home: "@thing indoors !outdoors s3 home",
};

export const groups: readonly { of: string; objects: string }[] = [
  {
    of: "mammal",
    objects: `
      dog (hound, puppy, doggy): pet eatsMeat s3.4 indoors !edible ?dangerous ?swims ?livingRoom ?garden ?farm ?street home
      cat (kitten, kitty, house cat): pet eatsMeat s3.2 indoors !edible !dangerous ?swims ?livingRoom ?garden ?farm home
      rabbit (bunny): ?pet s3 ?farm ?farmAnimal ?edible !dangerous garden !sound ?swims ?home
      hamster: pet s1.5 indoors !edible !dangerous !swims c:brown ?eatsMeat home
      mouse (mice): ?pet s1 !edible !dangerous c:grey indoors ?swims ?eatsMeat ?garden ?farm ?home
      horse (pony, stallion, mare): farmAnimal farm ?pet s4.7 ride sit heavy c:brown ?swims
      donkey: farmAnimal farm s4.6 ride sit c:grey heavy !dangerous ?swims
      cow (cattle): farmAnimal farm horns s4.8 edible heavy pattern !dangerous !soft ?swims
      pig (hog, swine): farmAnimal farm s4 edible heavy ?fur !dangerous !soft ?swims ?eatsMeat
      sheep (lamb, ewe): farmAnimal farm s3.8 edible c:white !dangerous ?horns ?swims
      goat: farmAnimal farm horns s3.7 edible !dangerous ?soft ?swims`,
  },
  {
    of: "wildMammal",
    objects: `
      lion (lioness): eatsMeat dangerous hot c:yellow/brown !edible !pattern heavy s4.3 ?swims
      tiger: eatsMeat dangerous hot pattern c:orange !edible swims heavy s4.3
      bear (grizzly, grizzly bear): ?eatsMeat dangerous s4.6 c:brown ?swims heavy !hot !pattern
      polar bear: eatsMeat dangerous s4.7 c:white swims heavy !hot !pattern ?ocean
      wolf: eatsMeat dangerous s3.8 c:grey !hot !edible !pattern
      fox: eatsMeat s3.4 c:orange !dangerous !edible !hot
      elephant: s5.3 heavy c:grey ?fur !soft hot ?dangerous !pattern ?ride ?sit
      giraffe: s5.2 heavy pattern hot c:yellow !dangerous !swims !edible ?long ?sound
      zebra: s4.6 heavy pattern hot c:black/white !edible !dangerous ?swims
      hippo (hippopotamus): s5 heavy c:grey swims !fur !soft hot dangerous !pattern ?water
      rhino (rhinoceros): s5 heavy horns c:grey !fur !soft hot dangerous !pattern ?swims
      camel: s4.8 heavy ride sit c:brown hot ?farmAnimal ?edible !dangerous ?soft ?swims
      kangaroo: !fourLegs s4 hot c:brown ?dangerous ?fourLegs ?swims
      koala: s3.2 hot c:grey !edible !dangerous !swims !pattern
      panda (panda bear, giant panda): s4 c:black/white !edible ?dangerous !hot pattern
      monkey: s3.4 hot c:brown ?edible ?fourLegs ?swims ?eatsMeat
      gorilla (ape): s4.2 hot c:black ?fourLegs !tail heavy !swims !pattern ?dangerous
      deer (stag): horns edible c:brown !dangerous !hot s4
      moose: horns s4.8 heavy edible c:brown !hot dangerous
      squirrel: s2 !dangerous c:brown/grey !hot garden !edible ?swims
      beaver: s3.2 swims c:brown !hot !edible !dangerous ?water
      hedgehog: s2 !fur !soft sharp garden c:brown !edible !hot !dangerous !sound ?eatsMeat
      raccoon: s3.2 pattern c:grey ?eatsMeat !hot !edible ?swims
      skunk: s3 pattern c:black/white !hot !edible !dangerous ?eatsMeat ?swims
      rat: s2 c:grey/brown ?indoors ?pet !edible ?swims ?eatsMeat ?farm ?street ?home
      bat: wings flies !fourLegs ?legs !tail s1.5 c:black/brown !edible !swims ?celestial ?eatsMeat
      seal: swims water eatsMeat !fourLegs !legs s4 c:grey !hot !dangerous ?soft ocean
      dolphin: swims water eatsMeat !fourLegs !legs !fur !soft s4.3 c:grey !dangerous heavy !pattern ocean
      whale: swims water !fourLegs !legs !fur !soft c:grey/black heavy s6 ?eatsMeat ocean
      otter: swims water eatsMeat s3.2 c:brown !edible !dangerous ?ocean`,
  },
  {
    of: "bird",
    objects: `
      chicken (hen, rooster): farmAnimal farm edible ?flies s2.8 c:white/brown !dangerous !celestial
      duck: farmAnimal farm edible swims water s2.7 ?pet !dangerous
      goose: farmAnimal farm edible swims water s3.1 c:white/grey ?dangerous
      turkey: farmAnimal farm edible ?flies s3.3 c:brown !dangerous !celestial
      eagle: eatsMeat s3.2 c:brown !edible ?dangerous ?celestial ?sharp
      owl: eatsMeat s2.8 c:brown/white !edible !dangerous ?celestial
      parrot (macaw): pet s2.5 c:green/red hot indoors !edible !dangerous !eatsMeat home
      penguin: !flies swims eatsMeat c:black/white s3.3 !hot !edible !dangerous !celestial ?water ?ocean
      ostrich: !flies s4.4 hot c:black/brown ?farm ?farmAnimal ?edible !celestial ?long
      swan: swims water c:white s3.3 !edible !eatsMeat
      flamingo: s3.4 hot !edible !dangerous ?long ?water
      peacock: s3.3 pattern c:green ?flies !edible !dangerous !celestial
      pigeon: s2 c:grey/white street !dangerous ?celestial ?garden
      crow: s2 c:black !edible !dangerous ?celestial ?garden
      hummingbird: s1 !edible !dangerous garden ?celestial ?eatsMeat
      seagull (gull): s2.5 c:white !edible eatsMeat ?celestial ?water ?ocean
      woodpecker: s2 c:red/black !edible !dangerous ?celestial ?eatsMeat`,
  },
  {
    of: "fish",
    objects: `
      shark: eatsMeat dangerous s4.7 c:grey heavy !pattern ocean
      goldfish: pet s1 indoors c:orange !edible !eatsMeat !outdoors home
      salmon: eatsMeat s3.1 c:orange/grey ?ocean
      tuna: eatsMeat s4 c:grey ocean
      seahorse: s1 !edible !dangerous hot ocean
      eel: long s3.2 c:black/grey eatsMeat ?ocean`,
  },
  {
    of: "animal",
    objects: `
      octopus: swims water eatsMeat edible soft !tail s3.2 ?legs !sound !indoors !fourLegs !dangerous ocean
      squid: swims water eatsMeat edible soft !tail s3 !sound !indoors ?legs c:white/red !dangerous ocean
      crab: water shell ?swims !tail edible s2 !sound c:red/brown !indoors !soft ocean
      lobster: water shell swims tail edible s2.5 !sound c:red !indoors !soft expensive ocean
      jellyfish: swims water !legs !tail soft s2.4 !sound !indoors !edible ?dangerous ocean
      starfish (sea star): water ?legs !tail !sound s2 !indoors !edible c:orange/red !dangerous !soft ocean
      snail: shell !legs s1 !sound garden ?soft c:brown !dangerous !swims ?tail !eatsMeat !indoors
      frog: fourLegs !tail swims s1.5 sound c:green ?indoors !dangerous eatsMeat ?garden ?water
      worm (earthworm): !legs ?tail s1 !sound garden soft long underground c:brown !dangerous !swims !indoors !edible !eatsMeat
      spider: !tail s1 indoors !sound ?dangerous eatsMeat c:black !swims !edible ?home
      scorpion: tail s1.5 !sound dangerous eatsMeat hot !swims !edible !indoors`,
  },
  {
    of: "insect",
    objects: `
      bee (honeybee, bumblebee): wings flies sound pattern c:yellow ?dangerous ?celestial ?sharp !eatsMeat
      butterfly: wings flies pattern !eatsMeat
      moth: wings flies c:brown/grey indoors !eatsMeat ?home
      ant: c:black/red indoors ?home
      fly (housefly): wings flies sound c:black indoors ?home
      mosquito: wings flies sound ?dangerous indoors c:black ?home
      grasshopper: wings ?flies sound c:green ?edible !eatsMeat
      cricket: wings ?flies sound c:black/brown ?edible
      ladybug (ladybird): wings flies pattern c:red round
      cockroach (roach): wings ?flies indoors c:brown !garden ?home
      dragonfly: wings flies long ?water eatsMeat
      caterpillar: soft long c:green ?fur !eatsMeat`,
  },
  {
    of: "reptile",
    objects: `
      snake: !legs !fourLegs long eatsMeat dangerous s3.2 ?pet ?garden ?sound
      lizard: s2 eatsMeat c:green/brown !dangerous ?pet
      crocodile: eatsMeat dangerous swims water s4.7 c:green heavy ?sound !indoors
      turtle (tortoise): shell ?swims ?water s2.8 c:green !dangerous ?pet ?ocean
      dinosaur: !alive heavy ?dangerous ?outdoors ?fourLegs sound s5`,
  },
  {
    of: "tree",
    objects: `
      oak tree (oak): s6
      palm tree (palm): hot s6
      pine tree (pine, fir tree): decoration !hot ?indoors s6 ?home
      apple tree: farm garden s5.3`,
  },
  {
    of: "flower",
    objects: `
      rose: sharp c:red
      tulip: ?red ?yellow
      sunflower: c:yellow s2.8 round farm ?edible
      daisy: c:white
      dandelion: c:yellow !decoration ?edible`,
  },
  {
    of: "plant",
    objects: `
      cactus: sharp hot s2.7 c:green decoration indoors ?home
      grass: c:green s1.5 garden farm long !decoration ?soft
      fern: c:green s3 soft ?home
      ivy: c:green s4 ?long ?home
      bamboo: long c:green wood hot s4.5
      bush (shrub): garden s4 c:green !indoors
      moss: c:green soft s1.5 ?garden
      mushroom: ?plant ?vegetable food edible kitchen s1.5 soft c:white/brown ?alive !hot`,
  },
  {
    of: "fruit",
    objects: `
      apple: round c:red/green s1.5 !hot ?peel !soft
      banana: peel long c:yellow soft breakfast ?opens
      orange: peel round c:orange s1.7 ?breakfast
      lemon: !sweet c:yellow s1.3 ?round ?peel !breakfast
      lime: !sweet c:green s1.2 ?round ?peel !breakfast
      grape: !onTree round s1 !peel soft c:green/red
      strawberry: !onTree c:red s1 !peel !hot soft ?breakfast garden
      blueberry: !onTree round s1 !peel !hot soft breakfast
      raspberry: !onTree c:red s1 !peel !hot soft
      cherry: round c:red s1 !peel !hot soft
      peach: ?round s1.7 soft c:orange ?peel
      pear: s1.8 c:green ?soft !hot ?peel
      plum: round s1.4 soft !peel !hot
      pineapple: !onTree s2.9 c:yellow/brown !soft ?peel ?sharp
      mango: s1.8 c:orange/yellow peel soft
      kiwi (kiwifruit): !onTree s1.3 c:green/brown peel soft ?round
      watermelon: !onTree round s3.1 c:green/red !soft ?heavy !peel
      coconut: round shell s2.5 c:brown !soft ?peel ?opens
      avocado: !sweet c:green s1.8 peel soft ?breakfast`,
  },
  {
    of: "vegetable",
    objects: `
      carrot: underground long c:orange s1.8 peel !soft
      potato: underground c:brown s1.8 peel !soft ?round
      onion: underground round c:white/brown peel s1.7 !soft
      garlic: underground c:white peel s1.2 !soft ?round
      tomato: ?fruit ?vegetable round c:red soft !peel s1.7
      cucumber: long c:green ?peel s2.1
      pepper (bell pepper): c:red/green s2 !peel
      chili pepper (chili, hot pepper): s1 long !peel hot c:red/green ?heat
      broccoli: c:green !peel s2.3
      cauliflower: c:white !peel s2.7 ?round
      lettuce: c:green !peel s2.7 soft
      cabbage: c:green round !peel s2.7
      spinach: c:green soft !peel flat
      corn (maize): c:yellow s2.1 ?peel ?long
      pumpkin: c:orange round s3.1 ?heavy decoration ?fruit ?sweet
      pea (peas): c:green round s1 ?peel ?sweet
      bean (beans): s1 !peel c:brown/green
      eggplant (aubergine): s2.2 ?peel ?soft`,
  },
  {
    of: "food",
    objects: `
      bread (loaf of bread, loaf): manMade baked soft breakfast s2.8 c:brown/white !sweet
      egg: !manMade shell breakfast ?round c:white/brown s1.3 farm !soft !sweet ?opens
      cheese: manMade dairy c:yellow s1.8 ?breakfast !sweet
      butter: manMade dairy c:yellow soft breakfast s1.5 !sweet
      honey: !manMade sweet c:yellow/orange breakfast ?size ?soft
      rice: !manMade c:white !breakfast farm !sweet
      sugar: manMade sweet c:white
      salt: ?manMade c:white !sweet !breakfast
      peanut (nut): ?manMade shell underground s1 c:brown !soft !breakfast farm !sweet
      pancake: manMade round flat soft breakfast sweet ?heat c:brown ?dessert
      sausage: manMade meat long ?soft ?breakfast c:red/brown
      bacon: manMade meat breakfast c:red flat
      ham: manMade meat soft s2.7
      steak: ?manMade meat ?soft c:red/brown !breakfast ?expensive
      cereal (cornflakes): manMade breakfast s1 ?sweet children
      yogurt (yoghurt): manMade dairy soft breakfast cold c:white ?sweet`,
  },
  {
    of: "dish",
    objects: `
      pizza: baked round flat children s3 ?red ?heat ?soft
      hamburger (burger, cheeseburger): meat round s1.9 children c:brown
      sandwich: !heat ?breakfast
      spaghetti (pasta, noodles, noodle): long c:yellow children
      soup: ?drink s2.7 ?heat ?cold ?soft
      french fries (fries, chips): long children c:yellow ?soft s1
      taco: ?meat ?soft
      sushi: ?fish s1 cold
      popcorn: s1 c:white/yellow children ?sweet ?soft`,
  },
  {
    of: "sweets",
    objects: `
      cake (birthday cake): baked ?round children s2.8
      cookie (biscuit): baked round flat s1.2 children c:brown ?soft
      pie: baked round s2.8 ?fruit ?soft
      donut (doughnut): ?baked round s1.7 ?breakfast
      chocolate (chocolate bar): c:brown s1.5 children !soft ?flat ?dairy ?dessert
      ice cream (ice cream cone): cold dairy children s2
      candy (lollipop, sweets): children s1 !soft ?round ?dessert
      muffin: baked breakfast s1.7 ?round ?dessert`,
  },
  {
    of: "drink",
    objects: `
      water: !manMade !sweet ?cold ?size ?landscape !swims ?cleans ?ocean
      milk: ?manMade dairy breakfast c:white cold children farm !sweet
      coffee: c:brown/black breakfast ?heat office ?sweet !children
      tea: c:brown breakfast ?heat ?sweet
      orange juice (juice): c:orange breakfast cold sweet children
      beer: c:yellow cold !sweet !breakfast !children ?opens
      wine: c:red/white ?sweet !breakfast !children ?expensive ?opens
      soda (cola, coke, pop): sweet cold c:black/brown !breakfast ?opens`,
  },
  {
    of: "vehicle",
    objects: `
      car (automobile): s5 garage ?home
      truck (lorry): s5.6 !garage ?farm
      bus (school bus): s5.7 !garage
      van (minivan): s5.3 ?garage
      taxi (cab): s5 c:yellow !garage
      ambulance: s5.4 c:white !garage !dangerous
      fire truck (fire engine): s5.7 c:red !garage ?dangerous
      police car: s5
      tractor: farm !street s5.2 ?inside c:green/red !home
      motorcycle (motorbike): s4.6 !inside !opens dangerous garage
      scooter (moped): s4.3 !inside !opens ?expensive garage
      bicycle (bike): !engine !inside !opens !heavy s4.2 ?expensive children ?light !movesItself !heat ?electricity ?sound garage ?home
      train: s6.3 !street !garage long
      subway (metro, underground train): s6.3 !street !garage ?underground long
      tank: weapon s5.6 !street !garage dangerous ?wheels !home
      bulldozer: s5.6 !street !garage ?inside c:yellow ?wheels
      skateboard: !engine !inside !opens !heavy s3.1 ?wood !metal !expensive children sports !light ?toy !movesItself ?flat !heat !electricity ?sound ?sit ?home
      wheelchair: ?engine !inside !opens !heavy s3.8 ?movesItself indoors ?street !light !garage !sound !dangerous !heat ?home
      baby carriage (stroller, pram): !engine !inside ?opens !heavy s3.8 ?children !light ?garage !sound ?fabric ?expensive !movesItself ?metal !dangerous !heat !electricity ?home
      spaceship (rocket, spacecraft): s6.3 !wheels flies !street !garage celestial ?aircraft ?dangerous
      airplane (plane, jet, aeroplane): s6.2 wings flies aircraft celestial !street !garage
      helicopter: s5.6 flies aircraft celestial !street !garage ?wheels
      hot air balloon: !engine !wheels flies aircraft celestial !street !garage fabric !metal s6 round !opens ?sound !electricity`,
  },
  {
    of: "boat",
    objects: `
      sailboat (sailing boat): ?engine s5.6 ?metal ?inside ?fabric !heat !sound ?ocean
      canoe: !engine s4.4 !metal ?wood !inside ?heavy ?expensive !sound long !heat !electricity
      submarine: s6.3 inside !swims ?dangerous !underground ?weapon ocean
      cruise ship (ship): s7 inside ocean`,
  },
  {
    of: "tool",
    objects: `
      hammer: ?wood ?dangerous ?fastens
      screwdriver: long s1.8 ?fastens
      wrench (spanner): ?long s2
      saw (handsaw): cuts sharp s2.6 dangerous ?flat
      drill (power drill): electricity sound s2.4 ?plastic buttons ?dangerous ?electronic
      pliers: s2 ?cuts
      axe (hatchet, ax): cuts sharp dangerous ?wood ?weapon outdoors s2.7 ?indoors
      shovel (spade): garden outdoors long s3.6 ?wood !dangerous ?farm ?sharp ?indoors
      rake: garden outdoors long s3.7 ?wood !dangerous ?farm ?indoors
      wheelbarrow: wheels container garden outdoors !hand s3.9 !dangerous ?farm ?indoors
      lawn mower (lawnmower): wheels engine garden outdoors cuts sound s3.8 ?heavy sharp ?dangerous ?expensive ?electricity ?indoors
      chainsaw (chain saw): engine cuts sharp sound dangerous s3.2 outdoors ?expensive ?electricity ?indoors
      ladder: long !handle ?legs ?wood s4.3 ?dangerous ?indoors ?tool
      nail: !handle fastens sharp s1 long ?tool
      screw (bolt): !handle fastens s1 sharp ?tool
      tape measure (measuring tape): measures !handle s1.5 !dangerous ?long ?plastic ?metal ?tool
      paintbrush (paint brush): !metal ?wood ?writes ?soft s1.8 ?school !dangerous ?children long
      flashlight (torch): light electricity buttons s1.8 !dangerous ?plastic ?long ?metal ?electronic
      rope: !handle !metal ?tool fastens long ?fabric s3 !dangerous
      chain: !handle fastens ?tool long s3 !dangerous
      bucket (pail): container holdsLiquid s2.9 ?plastic !dangerous round ?cleans ?tool ?metal ?farm
      broom: cleans long !metal ?wood ?kitchen ?garage s3.7 !dangerous
      mop: cleans long !metal ?wood ?kitchen ?bathroom s3.7 !dangerous ?soft ?garage`,
  },
  {
    of: "furniture",
    objects: `
      chair: sit office school kitchen s3.7 !heavy ?garden
      armchair (recliner): sit soft ?fabric s4 ?fourLegs
      sofa (couch, settee): sit soft ?fabric s4.4 expensive
      bed: sit soft bedroom !livingRoom !office !school s4.6 expensive heavy ?wood
      table (dining table): kitchen ?flat s4 ?sit ?eatWith ?drinkFrom
      desk: office school ?bedroom s4 ?sit ?writes ?livingRoom
      bench: sit outdoors ?indoors ?garden !livingRoom ?long s4
      stool (bar stool): sit kitchen s3.4 ?round !heavy ?fourLegs ?livingRoom
      bookshelf (bookcase): !sit ?wood office school !legs !fourLegs s4 ?container
      wardrobe (armoire): opens bedroom !livingRoom s4.6 heavy ?inside ?legs ?fourLegs ?container !office !school
      dresser (chest of drawers): opens bedroom !livingRoom handle ?fourLegs s4 ?container !office !school
      crib (cradle, baby bed): ?sit bedroom !livingRoom s4 !office !school
      cabinet (cupboard): container opens kitchen ?bathroom s4 handle !legs !fourLegs ?livingRoom
      hammock: sit fabric outdoors garden !legs !fourLegs !wood !metal !heavy soft !livingRoom s4 !office !school ?indoors`,
  },
  {
    of: "home",
    objects: `
      lamp (table lamp, desk lamp): light electricity bedroom livingRoom office s3.1 ?heat ?decoration ?kitchen ?electronic ?furniture
      light bulb (lightbulb, bulb): light electricity heat glass s1.4 round !fabric !plastic bedroom livingRoom kitchen bathroom ?electronic
      candle: light heat !plastic !metal s1.6 decoration ?long ?dangerous livingRoom ?bathroom home
      mirror: glass flat bathroom bedroom s3.6 ?decoration ?furniture
      clock (wall clock): measures ?sound ?electricity s2.8 bedroom kitchen livingRoom office school ?round ?electronic ?tool
      pillow (cushion): soft fabric bedroom s3.2 !plastic !metal ?sit ?livingRoom ?furniture ?decoration
      blanket (quilt, comforter): soft fabric bedroom s3.5 !plastic !metal flat ?livingRoom
      mattress: soft fabric bedroom sit !plastic ?heavy ?flat expensive s4.3 ?furniture
      curtain (curtains, drapes): fabric opens soft bedroom livingRoom !plastic !metal flat ?decoration s4
      carpet (rug): fabric flat soft livingRoom bedroom !plastic !metal ?decoration ?sit s4 ?furniture
      vase: ?container holdsLiquid decoration ?glass s2.8 !plastic !metal livingRoom ?round
      picture frame (frame, photo frame): decoration ?wood s2.6 livingRoom flat
      painting: decoration flat ?paper ?fabric s3.5 ?expensive livingRoom !plastic !metal
      door: opens handle ?wood flat ?outdoors bedroom bathroom kitchen ?heavy s4 ?sound home
      window: opens glass flat bedroom kitchen bathroom livingRoom ?outdoors !plastic !metal s4 home
      key: metal !plastic s1 !opens ?outdoors
      lock (padlock): metal !plastic s1.5 opens ?fastens ?outdoors ?tool
      umbrella: opens handle ?fabric outdoors s2.6 ?plastic ?long
      trash can (garbage can, dustbin, bin, trash bin, wastebasket): container ?opens ?lid kitchen office bathroom s3.5 ?outdoors ?street
      fireplace: heat ?light ?stone !plastic !metal s4.5 heavy livingRoom ?dangerous
      stairs (staircase, steps): ?wood ?stone !plastic s5 heavy ?outdoors ?dangerous ?sit
      toilet (lavatory): sit bathroom s3.7 heavy opens lid !metal ?plastic ?holdsLiquid ?sound
      bathtub (tub, bath): bathroom holdsLiquid s4.6 heavy sit ?inside cleans ?metal
      shower: bathroom cleans ?inside s4.6 ?plastic ?sound
      sink (washbasin, basin): bathroom kitchen holdsLiquid cleans s3.6 ?heavy ?sound
      towel: bathroom fabric soft ?cleans s3 !plastic !metal flat ?kitchen
      match (matchstick): wood s1 long heat light !plastic !metal ?dangerous`,
  },
  {
    of: "clothing",
    objects: `
      shirt (t-shirt, tshirt): !buttons ?flat
      pants (trousers): ?long ?legs
      jeans: ?legs
      shorts: ?legs ?hot ?sports
      dress (gown): s2.6 ?decoration
      skirt:
      sweater (pullover, jumper): s2.6
      coat (jacket): outdoors s2.8 ?opens ?indoors
      suit: expensive s2.9
      sock (socks, stocking): ?footwear s1
      glove (gloves): s1 ?leather outdoors
      scarf: long s1.8 outdoors
      tie (necktie): long s1.4 ?office ?decoration
      belt: leather !fabric long s1.6 !soft fastens
      swimsuit (bikini, bathing suit): s1.4 outdoors ?sports ?water ?ocean
      pajamas (pyjamas): s2.3 bedroom
      underwear (underpants, boxers, panties): s1.4 !children
      bra (brassiere): s1.8 !children
      diaper (nappy): ?paper s1.8 ?children ?fabric ?plastic
      apron: kitchen s2 ?flat ?cooks
      bathrobe (robe): s2.8 ?bathroom
      backpack (rucksack, schoolbag): !clothing container opens school s3.2 outdoors children ?soft`,
  },
  {
    of: "shoe",
    objects: `
      sneaker (sneakers, running shoe, trainers, tennis shoe): ?sports ?rubber ?fabric
      boot (boots): ?leather s2.7 outdoors ?indoors
      sandal (sandals, flip flop): ?hot ?flat
      high heel (high heels, heels): !children
      slipper (slippers): soft indoors !outdoors !leather bedroom ?fabric
      ice skate (ice skates): sports sharp ?metal ?cold ?indoors s2.7 ?clothing`,
  },
  {
    of: "hat",
    objects: `
      baseball cap (cap, baseball hat): ?sports ?round
      cowboy hat: ?leather ?round
      crown (tiara): metal !fabric !soft ?jewelry expensive !outdoors ?decoration ?clothing
      helmet (bike helmet): !fabric !soft plastic ?sports s3 ?clothing ?round ?metal`,
  },
  {
    of: "jewelry",
    objects: `
      ring (wedding ring): round
      necklace: ?long ?round
      earring (earrings):
      bracelet (bangle): round s1.5 ?expensive
      watch (wristwatch): measures ?round ?jewelry ?electronic ?electricity ?sound ?leather
      diamond (gem, gemstone, jewel): ?worn !metal stone ?manMade ?sharp
      sunglasses (shades): !jewelry !metal ?plastic ?glass outdoors ?decoration ?headwear ?expensive s1.5
      glasses (eyeglasses, spectacles): !jewelry ?metal ?plastic ?glass !decoration ?headwear s1.5 ?expensive
      coin: !jewelry !worn round flat !decoration ?expensive`,
  },
  {
    of: "instrument",
    objects: `
      guitar (electric guitar): strings wood s3.6 ?electricity
      violin (fiddle): strings wood s3.1
      cello: strings wood s4
      harp: strings ?wood ?heavy s4
      piano (grand piano): wood heavy s4.7 legs expensive ?strings ?livingRoom opens
      drum (drums): round s3.3 ?wood !container
      trumpet: metal s3
      saxophone: metal s3.2
      flute (recorder): ?metal long s2.3 ?wood
      accordion: s3.3 ?opens
      xylophone: ?wood ?metal s3.2 children ?toy
      bell: metal s2 ?round ?school ?communicates
      whistle: ?metal ?plastic s1 ?sports !expensive ?communicates
      harmonica (mouth organ): metal s1.2`,
  },
  {
    of: "electronic",
    objects: `
      television (tv, tv set): screen sound light livingRoom bedroom s3.8 flat ?office ?heat ?communicates home
      computer (desktop computer, pc): ?screen office school s3.4 heat ?light ?writes ?measures ?communicates
      laptop (notebook computer): screen office school s2.8 opens flat light ?heat communicates ?writes
      tablet (ipad): screen s2.4 flat light sound ?school ?communicates
      phone (cell phone, mobile phone, smartphone, telephone, cellphone): screen communicates sound s1.2 light flat ?outdoors ?measures ?opens home
      camera: s1.9 ?screen !heat ?outdoors ?plastic ?opens
      radio: sound s2.7 !heat ?light ?kitchen ?communicates ?expensive ?outdoors
      headphones (earphones, earbuds): sound worn ?headwear s2 !light !heat ?buttons ?expensive
      keyboard (computer keyboard): office school s2.7 flat ?writes !heat ?expensive
      computer mouse: office school s1.6 !heat ?sound !expensive
      printer: office school s3.3 sound ?light ?expensive
      calculator: office school screen s1.4 !heat !sound !expensive ?measures flat
      remote control (remote, tv remote): s1.8 livingRoom ?long !heat !light !expensive !sound
      video game console (game console, playstation, xbox, nintendo): game ?toy children s3 livingRoom
      microphone (mic): ?sound s2 !heat !light ?handle ?metal ?school ?communicates ?plastic ?expensive ?outdoors
      speaker (loudspeaker): sound s3 !light livingRoom ?buttons ?expensive ?outdoors
      robot: movesItself s4 sound ?light ?legs ?toy ?plastic ?outdoors
      drone: flies ?aircraft ?movesItself outdoors !indoors s3 sound celestial ?toy`,
  },
  {
    of: "appliance",
    objects: `
      refrigerator (fridge): kitchen cold opens handle s4.5 heavy expensive ?light !holdsLiquid ?container
      oven (stove, cooker): kitchen cooks heat opens handle s4 heavy expensive ?light ?dangerous
      microwave (microwave oven): kitchen cooks heat opens s3 sound ?handle ?light
      toaster: kitchen cooks heat s2.9 ?sound !expensive
      blender (mixer): kitchen cooks sound holdsLiquid s3 lid ?sharp ?expensive ?container ?metal
      coffee maker (coffee machine): kitchen heat s3 ?cooks ?sound ?office ?holdsLiquid ?metal
      dishwasher: kitchen cleans opens s4 heavy sound ?heat expensive ?container
      washing machine (washer): cleans opens s4 heavy sound ?bathroom expensive ?round ?container
      vacuum cleaner (vacuum, hoover): cleans sound s3.5 handle ?wheels ?metal
      iron (clothes iron): heat handle s2.4 !expensive ?flat !sound ?bedroom ?dangerous
      fan (electric fan): sound s3.3 ?cold ?round ?bedroom ?office ?livingRoom !expensive ?metal
      air conditioner (ac): sound ?cold s3.7 heavy expensive ?bedroom office ?livingRoom
      hair dryer (hairdryer, blow dryer): heat sound bathroom handle s2.2 !expensive plastic !metal
      sewing machine: sound s3.2 ?sharp ?dangerous`,
  },
  {
    of: "kitchenware",
    objects: `
      spoon (teaspoon): eatWith s1.8 long handle ?cooks
      fork: eatWith s1.8 long handle ?sharp ?cooks
      knife (kitchen knife): cuts sharp dangerous s2 long handle ?eatWith ?cooks ?weapon
      chopsticks (chopstick): eatWith wood long ?metal s1.8 ?plastic
      plate (dish): eatWith round flat !metal s2.4 ?glass
      bowl: eatWith round ?container holdsLiquid !metal s2.4 ?glass ?cooks ?drinkFrom
      cup (mug, coffee mug, teacup): holdsLiquid ?handle !metal ?glass s2 ?container ?office ?round !eatWith drinkFrom
      wine glass (wineglass): holdsLiquid glass !metal !plastic s2 ?container ?round !eatWith drinkFrom
      bottle (water bottle): holdsLiquid container opens lid ?glass ?metal ?plastic s2 ?outdoors ?kitchenware ?round !eatWith drinkFrom
      jar: container opens lid glass !metal ?plastic s2 ?holdsLiquid ?kitchenware ?round ?drinkFrom
      can (tin can, tin): container opens metal s2 holdsLiquid ?kitchenware !plastic ?round !eatWith ?drinkFrom
      pot (cooking pot, saucepan): cooks holdsLiquid handle ?lid heat s2.9 round ?container !plastic ?opens
      frying pan (pan, skillet): cooks handle heat round ?flat s2.6 !plastic
      kettle (teapot, tea kettle): ?cooks holdsLiquid handle heat lid s2.7 ?container ?electricity ?round ?drinkFrom !eatWith
      spatula: cooks handle s2 ?flat long ?metal
      whisk: cooks handle s2 long
      rolling pin: cooks wood !metal handle long s2.3 ?round !plastic
      cutting board (chopping board): ?cooks ?wood !metal flat s2.6
      corkscrew (bottle opener, can opener): ?handle s1.7 ?sharp !opens
      ladle: ?cooks handle long s2.1
      straw (drinking straw): long !metal ?plastic ?paper s1.7 children ?kitchenware !eatWith drinkFrom
      napkin (tissue, paper towel): ?kitchenware ?paper soft flat cleans s1.2 !metal !plastic ?fabric`,
  },
  {
    of: "bathing",
    objects: `
      toothbrush: cleans handle plastic !metal s1.6 long children ?electricity
      toothpaste: cleans !metal ?plastic s1.7 ?white soft children ?opens
      soap (bar of soap): cleans !metal !plastic s1.4 children ?soft
      shampoo: cleans !metal ?plastic s2 children ?soft ?opens
      comb: ?handle plastic ?metal s1.4 ?long
      hairbrush (brush): handle s2 ?plastic
      razor (shaver): cuts sharp handle s1.6 ?dangerous !children ?electricity
      toilet paper (toilet roll): paper soft cleans round !plastic !metal s2
      sponge: soft cleans kitchen !metal ?plastic s1.6
      lipstick: !cleans s1 c:red !children ?decoration ?opens
      perfume (cologne): !cleans ?holdsLiquid ?glass s1.6 !children ?bedroom ?expensive ?opens`,
  },
  {
    of: "office",
    objects: `
      pencil: writes long wood !metal !plastic ?sharp s1.3 home
      pen (ballpoint pen): writes long ?plastic s1.2 ?communicates ?opens home
      crayon: writes long !metal !plastic children ?toy s1 !office
      marker (felt tip, highlighter): writes long plastic s1.3
      chalk: writes long c:white !metal !plastic s1 ?stone ?office
      eraser (rubber): rubber ?soft !metal ?plastic s1
      ruler: measures long flat ?plastic ?wood s1.9
      scissors (pair of scissors): cuts sharp metal ?plastic ?handle ?dangerous s1.8 ?kitchen ?opens home
      stapler: fastens ?metal s1.8 ?children
      paper clip (paperclip): fastens metal ?plastic s1 ?children
      tape (scotch tape, adhesive tape): fastens ?plastic !metal round s1.5 ?children home
      glue: fastens !metal ?plastic s1.7 home
      envelope: paper !metal !plastic flat opens ?communicates ?container s1.5 ?school !children ?writes
      stamp (postage stamp): paper !metal !plastic flat s1 !school !children ?communicates
      newspaper: paper pages flat !metal !plastic s2 !stationery livingRoom !children ?communicates ?school ?opens home
      book (novel): paper pages opens !metal !plastic s2 !stationery bedroom livingRoom ?flat ?communicates home
      notebook (diary, journal): paper ?pages opens !metal !plastic s1.9 ?flat home ?writes
      map: paper ?pages flat !metal !plastic s1.5 ?stationery ?office ?outdoors ?children ?opens
      globe: round ?metal s3 ?stationery ?decoration ?children
      calendar: paper ?measures ?pages flat !metal !plastic s2.3 ?kitchen ?stationery ?children home
      briefcase: container opens handle ?leather !school s3.2 !children ?stationery
      letter: paper pages flat communicates !metal !plastic s1.4 !school ?stationery !children ?writes ?opens
      money (dollar bill, banknote, cash): paper flat ?metal !plastic s1 !stationery !school ?office ?children ?outdoors
      wallet (billfold): container opens ?leather !metal !plastic s1.4 !stationery !school ?office !children ?outdoors`,
  },
  {
    of: "sport",
    objects: `
      soccer ball (football): ball round s2.7 ?leather ?rubber !metal !plastic game
      basketball: ball round c:orange s2.8 ?rubber ?leather !metal ?plastic game
      baseball: ball round c:white s1.6 ?leather !metal !plastic game
      tennis ball: ball round c:yellow/green s1.5 !metal !plastic ?rubber ?soft game
      golf ball: ball round c:white s1.1 !metal !children ?plastic game
      bowling ball: ball round s2.8 indoors !outdoors !metal ?heavy ?children !school game
      tennis racket (racket, racquet): handle strings s3.1 game
      baseball bat: ?handle long ?wood ?metal !plastic s3.2 ?weapon game
      golf club: handle long metal !plastic s3.5 !children !school ?garage game
      hockey stick: ?handle long ?wood !metal s3.6 game
      frisbee: round flat plastic !metal s2.4 toy ?flies game
      ski (skis): long flat ?footwear !indoors s3.7 ?cold !school ?metal ?children ?garage !game
      surfboard: long flat water !indoors !school ?metal ?ride s4 !game ocean
      trampoline: ?round s4.7 heavy ?fabric ?metal garden ?toy ?sports !game
      dumbbell (weight, barbell): metal ?heavy indoors !outdoors !children s2.4 ?handle !school !game
      tent: fabric inside opens !indoors s4.8 !school !sports ?children !metal ?plastic !game
      fishing rod (fishing pole): long handle !indoors s3.8 ?water !school ?children ?strings !game ?wood
      parachute: fabric ?flies celestial !indoors !school !children !metal !plastic s5 !home !game
      swimming pool (pool): holdsLiquid ?inside s5.7 heavy expensive ?indoors garden !metal ?plastic ?sports ?water !game`,
  },
  {
    of: "toy",
    objects: `
      doll (barbie, barbie doll): legs s2.3 ?fabric ?sound
      teddy bear (stuffed animal, teddy): soft fabric !plastic s2.6 ?legs fur c:brown
      kite: ?flies ?fabric ?paper outdoors !indoors celestial s3 !bedroom ?plastic
      balloon: round rubber !plastic ?flies decoration s2.9 !bedroom ?soft
      puzzle (jigsaw puzzle, jigsaw): game ?paper ?wood ?plastic flat s2.8 ?bedroom
      lego brick (lego): s1 ?wood
      yo-yo (yoyo): round s1.4 ?wood
      dice (die): game s1 ?toy ?bedroom
      playing cards (deck of cards, card): game paper flat ?plastic s1.3 ?toy ?bedroom
      chess set (chess, chessboard): game ?wood ?flat ?toy s2.9 ?bedroom ?plastic
      swing: outdoors garden !indoors sit !bedroom s4.5 ?toy ?wood ?metal school ?plastic ?ride !home
      slide: outdoors ?garden !indoors !bedroom s4.8 ?metal heavy ?toy school ?plastic !home
      rocking horse: sit ?wood ?ride s3.6 ?legs ?plastic !electricity
      marble: round glass !plastic s1 ?stone game ?bedroom`,
  },
  {
    of: "building",
    objects: `
      house (home): s6 ?wood ?garden ?home
      castle (fortress): stone s7 !wood ?electricity !street
      church: s6.4 ?stone
      school (schoolhouse): s6.6 children !office school
      hospital: s6.8 !wood !stone
      skyscraper (tower): s7 ?metal ?glass ?office !wood
      barn: farm wood s6.2 !street ?expensive !stone
      garage: ?garage s5.4
      lighthouse: light s6.3 ?water ?stone !street ?ocean
      windmill: ?farm !street ?movesItself s6
      igloo: cold !street !stone !expensive !wood !metal !electricity !light round s5
      bridge: ?building !inside ?opens s6.7 street ?water ?metal
      factory: s6.7 ?sound
      restaurant: !kitchen s6 !wood
      prison (jail): s6.7 ?dangerous
      pyramid: stone s6.9 hot !street !opens !electricity !light ?expensive !metal !wood ?inside
      statue (sculpture): !building !inside !opens !electricity !light decoration ?stone ?metal ?expensive ?legs ?size heavy ?garden
      fence: !building !inside ?opens garden farm ?wood s4.6 !expensive !electricity !light long
      traffic light (stoplight): !building !inside !opens light electricity street s4.4 c:red/green !stone !wood ?metal ?communicates
      mailbox (letterbox, postbox): !building !inside opens container street s3.7 !electricity !light ?metal ?communicates !expensive ?heavy !stone
      fountain: !building !inside !opens ?water ?stone s5 holdsLiquid decoration ?electricity ?garden !wood
      flag: !building !inside !opens fabric s3.7 ?decoration !heavy !electricity !light flat !expensive ?soft !wood !stone ?communicates`,
  },
  {
    of: "nature",
    objects: `
      mountain: stone
      volcano: stone dangerous heat ?light ?sound
      river (stream): long !holdsLiquid !swims ?sound ?water
      lake: ?flat ?water
      ocean (sea): ?dangerous ?sound ?water ?ocean
      beach: ?hot ?water ?soft ?flat ?heat ?ocean
      desert: hot ?dangerous ?flat ?heat
      forest (woods): ?plant ?tree ?wood c:green ?alive ?inside
      island: ?water ocean
      cave: stone inside underground s6
      waterfall: sound s6.6 ?water
      iceberg: cold water c:white ?dangerous !hot ocean
      sun: !landscape celestial light heat round c:yellow ?dangerous
      moon: !landscape celestial ?light round c:white/grey stone
      star: !landscape celestial light ?round ?heat
      cloud: !landscape celestial c:white/grey ?soft ?heavy s6.5
      rainbow: !landscape celestial !heavy s6.6 ?light
      lightning (thunderbolt): !landscape celestial light heat dangerous ?electricity ?sound !heavy ?size
      rain: !landscape celestial ?water !heavy ?size ?sound
      snow (snowflake): !landscape cold c:white soft ?celestial !heavy ?size !hot
      fire (flame, campfire): !landscape light heat dangerous c:orange/red !heavy ?size ?indoors ?manMade ?sound ?cooks ?home
      rock (stone, pebble): stone ?landscape ?size ?heavy c:grey ?sit garden ?home
      sand: ?landscape s1 ?heavy c:yellow/brown ?stone ?soft ?children ?home ?ocean
      ice (ice cube): !landscape cold s1.4 !heavy ?indoors kitchen !hot ?edible home
      leaf (leaves): !landscape ?plant ?alive c:green/brown flat s1.2 !heavy garden onTree ?home
      shell (seashell, sea shell): !landscape shell s1.2 !heavy water ?decoration ?home ocean
      feather: !landscape feathers s1.3 !heavy soft ?long ?home
      bone: !landscape s2 !heavy c:white ?bodyPart ?long ?home
      gold: !landscape metal ?size ?heavy expensive c:yellow ?underground ?jewelry ?home`,
  },
  {
    of: "body",
    objects: `
      hand (fist): s2 ?writes
      foot (feet): s2.3
      nose: s1
      ear: s1 ?decoration
      eye (eyeball): round s1 ?opens
      mouth (lips): opens s1
      tooth (teeth): c:white s1 ?sharp !movesItself
      tongue: soft c:red s1
      hair: long soft ?size !movesItself ?fur
      heart: c:red sound movesItself s1.8
      brain: soft s2.3 !movesItself
      arm: long s3.2
      leg: long s3.5 !legs
      finger (thumb): long s1
      knee: s2 !movesItself
      beard (mustache, moustache): ?soft ?size !movesItself ?fur`,
  },
  {
    of: "container",
    objects: `
      box (cardboard box): ?paper ?wood ?plastic ?size ?garage
      basket: ?handle ?wood !opens !metal s3 ?kitchen
      bag (handbag, plastic bag, shopping bag): handle s2.8 ?fabric ?paper ?leather
      barrel (keg): ?wood round holdsLiquid s3.8 ?plastic ?heavy ?opens
      aquarium (fish tank): glass holdsLiquid ?opens s3.6 ?decoration !plastic !metal ?livingRoom ?heavy
      birdcage (cage): metal s3.4 ?plastic
      treasure chest (chest, trunk): ?wood lid s3.7 ?heavy ?expensive !plastic ?metal
      lunchbox (lunch box): ?handle lid s2.7 children school ?kitchen`,
  },
  {
    of: "thing",
    objects: `
      gun (handgun): weapon dangerous metal !plastic !children handle sound s2.2 ?expensive ?indoors ?outdoors
      sword: weapon dangerous metal !plastic sharp cuts handle long !children ?expensive s3
      bow and arrow (bow, arrow): weapon dangerous ?wood strings ?children long s3.4 ?sports outdoors !metal ?plastic ?home
      bomb: weapon dangerous metal sound !children s2.4 heat !plastic ?light ?electronic
      cannon: weapon dangerous metal heavy sound !children wheels s4.6 !plastic outdoors !indoors !home
      shield: ?metal !plastic !children s3.5 handle ?flat ?weapon
      needle (sewing needle): metal sharp long s1 !plastic !children indoors ?dangerous ?fastens
      syringe (injection): sharp ?plastic !children s1.5 long indoors !outdoors ?dangerous holdsLiquid
      pill (medicine, tablet of medicine): ?edible s1 ?round !children !plastic !metal indoors ?bathroom !outdoors ?dangerous
      bandage (band aid, plaster): ?worn ?fabric s1 !metal indoors bathroom ?fastens
      telescope: long ?glass !celestial ?children s3.5 ?outdoors ?expensive !round ?home
      microscope: ?glass school s2.9 expensive indoors !outdoors ?light ?electricity !home
      magnet: metal s1 !plastic ?school indoors ?kitchen
      anchor: metal !plastic heavy water outdoors !indoors !children s3.8 !home ocean
      tire (tyre): rubber round outdoors garage s3.6 !metal !plastic !wheels ?heavy !children
      battery: ?metal s1 ?electronic indoors ?children ?electricity
      brick: ?stone s2 outdoors c:red !metal !plastic !children ?heavy
      cigarette (cigar): ?paper s1 long heat dangerous !children !metal !plastic outdoors ?indoors c:white
      trophy: ?metal decoration s2.8 ?children ?sports indoors ?livingRoom
      scarecrow: farm ?fabric outdoors !indoors !children s4 !metal !plastic ?legs garden !home
      snowman: cold c:white ?round outdoors !indoors children s3.9 !metal !plastic garden !home`,
  },
];
