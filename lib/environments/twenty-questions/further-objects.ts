/**
 * Objects of other lists that the embedded game leaves out, in the format of objects.ts. With them
 * the scripted oracle knows every object of LMRL-Gym. The embedded game does not use them, because
 * some of their names are its attributes.
 */

export const furtherGroups: readonly { of: string; objects: string }[] = [
  {
    of: "sport",
    objects: `
      volleyball: ball round c:white/yellow s2.8 ?leather ?rubber !metal !plastic game
      football (american football): ball ?round c:brown s2.8 leather ?rubber !metal !plastic game`,
  },
  {
    of: "fruit",
    objects: `
      cantaloupe (melon): !onTree round s2.9 c:orange/green !soft ?heavy !peel`,
  },
  {
    of: "vegetable",
    objects: `
      celery: long c:green s2.3 !peel`,
  },
  {
    of: "tree",
    objects: `
      tree: ?hot ?edible ?home`,
  },
  {
    of: "boat",
    objects: `
      boat: ?engine ?wood ?ocean s5.6`,
  },
  {
    of: "shoe",
    objects: `
      shoes (shoe, pair of shoes): ?sports ?fabric`,
  },
  {
    of: "hat",
    objects: `
      hat: ?sports`,
  },
  {
    of: "jewelry",
    objects: `
      brooch: ?round ?fastens
      hairclip (hair clip): ?jewelry ?plastic ?metal fastens !expensive ?children bathroom headwear
      pendant: ?round ?stone
      locket: opens ?round ?container`,
  },
  {
    of: "instrument",
    objects: `
      clarinet: wood long s2.8 ?plastic black ?buttons
      trombone: metal long s3.6`,
  },
  {
    of: "electronic",
    objects: `
      monitor (computer monitor): screen office school flat s3.4 light ?communicates`,
  },
  {
    of: "furniture",
    objects: `
      nightstand (bedside table): bedroom !livingRoom !office !school opens s3.5 ?container ?handle`,
  },
  {
    of: "office",
    objects: `
      paper (piece of paper): paper !metal !plastic flat c:white s1.8 ?pages ?writes ?communicates home
      sharpie: writes long plastic s1.3 c:black ?lid`,
  },
  {
    of: "nature",
    objects: `
      sea: ?dangerous ?sound ?water ocean ?home
      meteorite: !landscape stone ?metal ?celestial ?size ?heavy ?heat ?dangerous`,
  },
  {
    of: "thing",
    objects: `
      canvas (painting canvas): fabric flat ?wood decoration s3.3 indoors !metal !plastic c:white !children ?school
      watering can: container holdsLiquid handle garden ?metal ?plastic s2.9 outdoors ?indoors !children ?tool`,
  },
];
