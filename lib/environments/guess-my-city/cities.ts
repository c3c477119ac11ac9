/**
 * The cities of the game and the scripted oracle's facts about them: widely known facts, worded
 * without the names of the city and its country (a test checks this).
 */

export interface CountryLines {
  /**
   * Cities of a test country are used only for testing. Of the other countries, the last two cities
   * are for validation.
   */
  test?: true;
  /** Name, other names in parentheses. */
  country: string;
  continent: string;
  /** Region of the world. */
  region: string;
  hemisphere: "northern" | "southern";
  languages: string;
  currency: string;
  religion: string;
  dishes: string;
  /** Side of the road. */
  drives: "left" | "right";
  government: string;
  flag: string;
  sport: string;
  /**
   * One line per city: name (other names) | codes | part of the country | setting | landmark |
   * known for | history. The codes are a size, a status and a climate as below and, if a city
   * differs from its country, `continent=` and `languages=`.
   */
  cities: string;
}

/** Population including suburbs. */
export const sizes: Readonly<Record<string, string>> = {
  huge: "about ten million people or more",
  large: "several million people",
  million: "roughly one or two million people",
  middle: "several hundred thousand people",
  small: "less than about two hundred thousand people",
};

export const statuses: Readonly<Record<string, string>> = {
  national: "It is the national capital",
  third: "It is one of the three capitals of its country",
  regional: "It is not the national capital, but the capital of its state, province or region",
  own: "It is not the national capital, but has the rank of a state or province of its own",
  none: "It is no capital",
};

export const climates: Readonly<Record<string, string>> = {
  desert: "very hot summers and hardly any rain, as in a desert",
  dry: "hot and rather dry weather",
  steppe: "hot, dry summers and cool to cold winters",
  mediterranean: "dry, sunny summers and mild, wetter winters",
  tropical: "warm or hot weather all year and a rainy season",
  subtropical: "hot, humid summers and mild to cool winters",
  monsoon: "great heat before the summer monsoon and mild winters",
  highland: "mild weather all year, because it lies high",
  oceanic: "mild summers, cool winters and rain in every season",
  continental: "warm summers and cold, snowy winters",
  eastern: "hot, rainy summers and cold, dry winters",
  arctic: "short, cool summers and long, dark, cold winters",
};

export const countries: readonly CountryLines[] = [
  {
    country: "United States (United States of America, USA, US)",
    continent: "North America",
    region: "the middle of North America",
    hemisphere: "northern",
    languages: "English",
    currency: "dollar",
    religion: "Christianity",
    dishes: "hamburgers, barbecue and apple pie",
    drives: "right",
    government: "a federal republic with a president",
    flag: "red, white and blue",
    sport: "baseball and basketball",
    cities: `
      New York (New York City, NYC, Big Apple) | huge none continental | northeast | on the Atlantic coast, at the mouth of a large river | the Statue of Liberty | finance, theatres and skyscrapers | the Dutch founded it as a trading post in the seventeenth century
      Los Angeles (LA) | huge none mediterranean | southwest | on the Pacific coast, in a wide basin below hills | the Hollywood sign | the film industry | it was host of the summer Olympics in 1932 and 1984
      Chicago (Windy City) | large none continental | north, in the middle | on the shore of a great lake | a mirror-like sculpture in the shape of a bean | early skyscrapers, wind and deep-dish pizza | a great fire destroyed much of it in 1871
      Miami | large none tropical | southeast | on the Atlantic coast, near the tip of a peninsula | the Art Deco district at the beach | beaches, nightlife and its Cuban community | it grew after a railway reached it in 1896
      San Francisco (SF, San Fran, Frisco) | large none mediterranean | west | on a hilly peninsula between the Pacific and a bay | the Golden Gate Bridge | cable cars, fog and technology firms | an earthquake and a fire destroyed much of it in 1906
      Las Vegas (Vegas) | large none desert | southwest | inland, in a desert valley | the Strip with its casino hotels | gambling and shows | it grew when a huge dam was built nearby in the 1930s
      New Orleans (NOLA) | million none subtropical | south | on the lower Mississippi, not far from the sea | the French Quarter | jazz and Mardi Gras | a hurricane flooded most of it in 2005
      Washington (Washington DC, Washington D.C., DC) | large national subtropical | east | inland, on the Potomac River | a tall white obelisk between a domed parliament and a memorial | politics, museums and monuments | it was planned from nothing in the 1790s
      Seattle | large none oceanic | northwest | between an arm of the Pacific and a lake | the Space Needle | coffee, aircraft and the rock music of the 1990s | it was host of a world's fair in 1962
      Boston | large regional continental | northeast | on the Atlantic coast, around a harbour | the Freedom Trail, a red line through the old town | an old marathon and famous universities next door | chests of tea were thrown into its harbour in 1773`,
  },
  {
    country: "China (People's Republic of China, PRC)",
    continent: "Asia",
    region: "eastern Asia",
    hemisphere: "northern",
    languages: "Chinese",
    currency: "yuan",
    religion: "Buddhism, Taoism and folk religion, though many have none",
    dishes: "dumplings, noodles and roast duck",
    drives: "right",
    government: "a one-party socialist republic",
    flag: "red and yellow",
    sport: "table tennis and badminton",
    cities: `
      Beijing (Peking) | huge national eastern | north | inland, on a plain near mountains | the Forbidden City | emperors' palaces and the government | it was host of summer and of winter Olympics
      Shanghai | huge own subtropical | east | on the coast, near the mouth of the Yangtze | the Bund, a waterfront of old banks | finance and a huge container port | it was opened to foreign trade after a war in the 1840s
      Guangzhou (Canton) | huge regional subtropical | south | on the Pearl River, not far from the sea | a very slender, twisted television tower | trade fairs and dim sum | it was for a long time the only port open to western traders
      Shenzhen | huge none subtropical | south | on the coast, at the border of a former British colony | a park with small copies of the world's monuments | electronics and technology firms | it was a small town until it became a special economic zone in 1980
      Chengdu | huge regional subtropical | southwest | inland, in a fertile basin | a breeding base of giant pandas | pandas, tea houses and spicy hotpot | it was the capital of one of the Three Kingdoms, Shu
      Xi'an (Xian, Sian, Chang'an) | huge regional eastern | northwest | inland, on a plain below the Qinling mountains | an army of terracotta soldiers nearby | ancient walls and the beginning of the Silk Road | it was the capital of the Tang dynasty
      Harbin | large regional continental | northeast | inland, on the Songhua River | an Orthodox cathedral with a green onion dome | a winter festival of ice sculptures | it grew with a railway that Russians built around 1900
      Wuhan | huge regional subtropical | centre | inland, where the Han River meets the Yangtze | the Yellow Crane Tower | hot dry noodles and cherry blossoms | the revolt that ended the empire began there in 1911
      Hangzhou | huge regional subtropical | east | at a famous lake, near a bay | West Lake with its causeways and pagodas | green tea, silk and online trade | it lies at the southern end of the Grand Canal
      Nanjing (Nanking) | large regional subtropical | east | inland, on the lower Yangtze | the mausoleum of Sun Yat-sen | a very long city wall and salted duck | it was the first capital of the Ming dynasty`,
  },
  {
    country: "India (Bharat)",
    continent: "Asia",
    region: "southern Asia",
    hemisphere: "northern",
    languages: "Hindi and English",
    currency: "rupee",
    religion: "Hinduism, with a large Muslim minority",
    dishes: "curries, lentils and flatbread",
    drives: "left",
    government: "a federal republic with a parliament",
    flag: "saffron, white and green with a blue wheel",
    sport: "cricket",
    cities: `
      Mumbai (Bombay) | huge regional tropical languages=Marathi,_Hindi_and_English | west | on the coast of the Arabian Sea | a great stone arch at the harbour | the Bollywood film industry and finance | it grew from seven islands that were joined
      Delhi (New Delhi) | huge national monsoon | north | inland, on the Yamuna River | the Red Fort | government, Mughal monuments and crowded bazaars | a new seat of government was built beside the old town after 1911
      Bengaluru (Bangalore) | huge regional highland languages=Kannada_and_English | south | inland, on a high plateau | a botanical garden with a glass house | software firms and parks | a local chieftain founded it in the sixteenth century
      Kolkata (Calcutta) | huge regional tropical languages=Bengali_and_English | east | in a river delta, not far from the Bay of Bengal | the Howrah Bridge | poets, trams and milk sweets | it was the seat of British rule until 1911
      Chennai (Madras) | huge regional tropical languages=Tamil_and_English | southeast | on the coast of the Bay of Bengal | Marina Beach | classical music and car factories | it grew around a fort of English traders
      Hyderabad | huge regional dry languages=Telugu,_Urdu_and_English | south | inland, on a rocky plateau | the Charminar with its four minarets | pearls, biryani and software | it was the seat of the Nizams, who were famously rich
      Jaipur (Pink City) | large regional dry | northwest | inland, among dry hills | the Hawa Mahal, a palace front with hundreds of windows | pink buildings and gems | a maharaja had it planned in 1727
      Varanasi (Benares, Banaras, Kashi) | million none monsoon | north | inland, on the Ganges | stone steps that lead down to the river | pilgrims who bathe in the river | it is one of the oldest inhabited towns of the world
      Agra | million none monsoon | north | inland, on the Yamuna River | the Taj Mahal | a white marble tomb that an emperor built for his wife | it was a capital of the Mughal emperors
      Amritsar | million none monsoon languages=Punjabi | northwest | inland, on a plain close to the border | the Golden Temple | the holiest shrine of the Sikhs | soldiers shot into a peaceful crowd there in 1919`,
  },
  {
    country: "Brazil (Brasil)",
    continent: "South America",
    region: "the east of South America",
    hemisphere: "southern",
    languages: "Portuguese",
    currency: "real",
    religion: "Christianity, mostly Catholic",
    dishes: "black bean stew, grilled meat and cheese bread",
    drives: "right",
    government: "a federal republic with a president",
    flag: "green and yellow with a blue globe",
    sport: "football",
    cities: `
      São Paulo (Sao Paulo, Sampa) | huge regional subtropical | southeast | inland, on a plateau | an art museum that hangs between red concrete frames | business and a sea of tall buildings | Jesuits founded it in 1554, and coffee made it rich
      Rio de Janeiro (Rio) | huge regional tropical | southeast | on the Atlantic coast, between mountains and a bay | the statue of Christ the Redeemer | beaches and the most famous carnival | it was host of the summer Olympics in 2016
      Brasília (Brasilia) | large national tropical | centre | inland, on a high plateau by an artificial lake | a cathedral of curved concrete columns | modern architecture and a plan in the shape of an aeroplane | it was built from nothing and opened in 1960
      Salvador (Salvador da Bahia, Salvador de Bahia) | large regional tropical | northeast | on the Atlantic coast, at the Bay of All Saints | a public lift between the lower and the upper town | African heritage and a carnival of drums | it was the first colonial capital
      Manaus | large regional tropical | north | inland, in the rainforest, where a black river meets the Amazon | a pink opera house with a tiled dome | being a large town in the middle of the rainforest | rubber made it rich around 1900
      Recife | large regional tropical | northeast | on the Atlantic coast, crossed by rivers | a beach behind a line of reefs | bridges and frevo dancing | the Dutch ruled it for some time in the seventeenth century
      Curitiba | large regional oceanic | south | inland, on a high plateau | a botanical garden with a metal and glass greenhouse | its bus system and its planning | many European immigrants settled around it in the nineteenth century
      Porto Alegre | large regional subtropical | south | on the shore of a large freshwater lake | an old power plant with a tall chimney at the water | gauchos, barbecue and the first World Social Forum | families from the Azores settled it in the eighteenth century
      Fortaleza | large regional tropical | northeast | on the Atlantic coast, facing north | the promenade of Iracema beach | dunes, lace and beach resorts | it grew around a fort of the Dutch
      Belo Horizonte | large regional tropical | southeast | inland, among hills | a small church of curved vaults at an artificial lake | bars, and mining towns nearby | it was planned as a state's capital and opened in 1897`,
  },
  {
    country: "Japan (Nippon, Nihon)",
    continent: "Asia",
    region: "islands in eastern Asia",
    hemisphere: "northern",
    languages: "Japanese",
    currency: "yen",
    religion: "Shinto and Buddhism",
    dishes: "sushi, ramen and tempura",
    drives: "left",
    government: "a constitutional monarchy with an emperor",
    flag: "white with a red disc",
    sport: "baseball and sumo",
    cities: `
      Tokyo (Edo) | huge national subtropical | east | at a large bay of the Pacific | the scramble crossing at Shibuya | being one of the largest urban areas of the world | shoguns made a fishing village their seat of government
      Osaka | huge regional subtropical | west of the main island | at a bay, in a river delta | a castle with green roofs and golden ornaments | street food, merchants and comedians | it was host of a world's fair in 1970
      Kyoto | million regional subtropical | west of the main island | inland, in a valley with hills on three sides | the Golden Pavilion | temples, gardens and geishas | it was the emperors' capital for more than a thousand years
      Hiroshima | million regional subtropical | west of the main island | on the coast, in a river delta | a ruined dome that is kept as a memorial | its peace park, oysters and layered pancakes | the first atomic bomb fell on it in 1945
      Nagasaki | middle regional subtropical | southwest, on the island of Kyushu | at a long harbour among hills | a peace statue with one hand raised to the sky | its old trade with foreigners and sponge cake | an atomic bomb fell on it three days after the first
      Sapporo | million regional continental | north, on the island of Hokkaido | inland, on a plain near mountains | a small wooden clock tower | beer and a festival of snow sculptures | it was host of the winter Olympics in 1972
      Yokohama | large regional subtropical | east | at a large bay of the Pacific, close to the capital | a huge Ferris wheel with a clock | its port and a large Chinatown | it was opened to foreign trade in 1859
      Nara | middle regional subtropical | west of the main island | inland, in a basin below wooded hills | a giant bronze Buddha in a wooden hall | tame deer that walk about | it was the capital in the eighth century
      Fukuoka | million regional subtropical | southwest, on the island of Kyushu | at a bay in the north of its island | a seaside tower covered with mirrors | pork bone ramen and open-air food stalls | Mongol fleets were beaten back there in the thirteenth century
      Kobe | million regional subtropical | west of the main island | at a bay, on a strip below mountains | a red lattice tower in the port | beef | a great earthquake struck it in 1995`,
  },
  {
    country: "Germany (Deutschland)",
    continent: "Europe",
    region: "central Europe",
    hemisphere: "northern",
    languages: "German",
    currency: "euro",
    religion: "Christianity, both Protestant and Catholic, though many have none",
    dishes: "sausages, potato salad and pretzels",
    drives: "right",
    government: "a federal republic with a chancellor",
    flag: "black, red and gold",
    sport: "football",
    cities: `
      Berlin | large national oceanic | northeast | inland, on the Spree, among lakes | the Brandenburg Gate | nightlife, museums and what is left of a wall | a wall divided it from 1961 to 1989
      Munich (München, Muenchen) | million regional continental | southeast | inland, on the Isar, near the Alps | a brick church with two domed towers | beer, above all at a festival in autumn | it was host of the summer Olympics in 1972
      Hamburg | million own oceanic | north | on the Elbe, some way from the North Sea | a concert hall like a wave of glass on top of a warehouse | its port and red-brick warehouses | it was a leading member of the Hanseatic League
      Cologne (Köln, Koeln) | million none oceanic | west | inland, on the Rhine | a huge Gothic cathedral with twin spires | carnival and a scented water | it began as a Roman colony
      Frankfurt (Frankfurt am Main) | million none oceanic | west, in the middle | inland, on the Main | a row of gabled houses called the Römer | banks, a book fair and a very large airport | emperors were elected and crowned there
      Dresden | middle regional oceanic | east | inland, on the Elbe | the Zwinger, a baroque palace | baroque buildings and porcelain | bombs destroyed it in February 1945
      Stuttgart | million regional oceanic | southwest | inland, in a hollow with vineyards | the first television tower of concrete | makers of fast and fine cars | pioneers of the motor car worked there
      Leipzig | middle none oceanic | east | inland, on a plain | a giant monument to a battle of 1813 | trade fairs and the choir that Bach led | marches on Mondays helped to end a state in 1989
      Bremen | middle own oceanic | northwest | on the Weser, some way from the North Sea | a statue of four animals on top of each other | a fairy tale of animals who want to be musicians | it was a Hanseatic town with a stone statue of Roland
      Nuremberg (Nürnberg, Nuernberg) | middle none continental | south | inland, on the small river Pegnitz | an imperial castle above the old town | gingerbread and a Christmas market | war criminals were tried there after the Second World War`,
  },
  {
    country: "France",
    continent: "Europe",
    region: "western Europe",
    hemisphere: "northern",
    languages: "French",
    currency: "euro",
    religion: "Christianity, mostly Catholic, though many have none",
    dishes: "baguettes, cheese and onion soup",
    drives: "right",
    government: "a republic with a strong president",
    flag: "blue, white and red",
    sport: "football, rugby and cycling",
    cities: `
      Paris | huge national oceanic | north | inland, on the Seine | the Eiffel Tower | fashion, art and cafés | a revolution began there in 1789
      Marseille (Marseilles) | million regional mediterranean | southeast | on the Mediterranean coast | a church on a hill with a golden statue of Mary | an old port, fish soup and soap | Greek sailors founded it around 600 BC
      Lyon (Lyons) | million regional oceanic | east, towards the south | inland, where the Rhône meets the Saône | a white basilica on the hill of Fourvière | restaurants and silk | the brothers Lumière made some of the first films there
      Bordeaux | million regional oceanic | southwest | on the Garonne, not far from the Atlantic | a sheet of shallow water that mirrors a square | red wine | it belonged to English kings for three hundred years
      Strasbourg | middle regional oceanic | east | inland, close to the Rhine and the border | a pink cathedral with a single spire | a European parliament and a Christmas market | it changed hands between two countries several times
      Toulouse | million regional oceanic | southwest | inland, on the Garonne | a Romanesque basilica of pink brick | aircraft, rugby and violets | its counts ruled much of the south in the Middle Ages
      Lille | million regional oceanic | north | inland, close to the border | a star-shaped citadel by Vauban | a huge flea market in September | it was a Flemish town until a king took it in 1667
      Nantes | middle regional oceanic | west | on the Loire, not far from the Atlantic | the castle of the dukes of Brittany | a giant mechanical elephant | a king gave Protestants their rights there in 1598
      Grenoble | middle regional continental | southeast | inland, in a valley among the Alps | round cable cars that go up to a fort | mountains and research | it was host of the winter Olympics in 1968
      Reims (Rheims) | middle none oceanic | northeast | inland, on a plain with vineyards | a Gothic cathedral with a smiling angel | cellars of sparkling wine | kings were crowned there`,
  },
  {
    country: "United Kingdom (UK, Great Britain, Britain, England, Scotland, Wales, Northern Ireland)",
    continent: "Europe",
    region: "islands in northwestern Europe",
    hemisphere: "northern",
    languages: "English",
    currency: "pound",
    religion: "Christianity, though many have none",
    dishes: "fish and chips, roast beef and meat pies",
    drives: "left",
    government: "a constitutional monarchy with a king or queen",
    flag: "red, white and blue",
    sport: "football, cricket and rugby",
    cities: `
      London | huge national oceanic | southeast | on the tidal Thames | Big Ben | red double-decker buses, theatres and finance | a great fire destroyed much of it in 1666
      Edinburgh | middle regional oceanic | north | near the sea, on hills | a castle on a volcanic rock | a festival of the arts in August | it was a centre of the Enlightenment
      Manchester | large none oceanic | northwest | inland, on a plain below hills | a Gothic town hall with a clock tower | two great football clubs and rock bands | its cotton mills led the industrial revolution
      Liverpool | million none oceanic | northwest | on the estuary of the Mersey | two giant birds on top of a building at the docks | the Beatles | millions of emigrants sailed from its docks
      Glasgow | million none oceanic | north | on the Clyde | a hill of Victorian tombs beside a medieval cathedral | shipbuilding, humour and Art Nouveau | it was called the second city of the empire
      Cardiff (Caerdydd) | middle regional oceanic | west | at a bay of the sea | a castle in the very centre, next to a rugby stadium | rugby and singing | it was one of the largest coal ports of the world
      Belfast | middle regional oceanic | northwest, on another island than the national capital | at the end of a sea inlet | two giant yellow cranes of a shipyard | wall paintings and the building of the Titanic | decades of conflict ended with an agreement in 1998
      Oxford | small none oceanic | south | inland, on the upper Thames | a round library with a dome | a very old university of many colleges | the king held his court there in the civil war
      York | small none oceanic | north | inland, on the Ouse | a huge Gothic minster | medieval walls and chocolate | it was a Viking capital
      Cambridge | small none oceanic | east | inland, on a small river full of punts | the chapel of King's College | a famous university of scientists | Newton studied and taught there`,
  },
  {
    country: "Italy (Italia)",
    continent: "Europe",
    region: "southern Europe",
    hemisphere: "northern",
    languages: "Italian",
    currency: "euro",
    religion: "Christianity, mostly Catholic",
    dishes: "pasta, pizza and ice cream",
    drives: "right",
    government: "a republic with a parliament",
    flag: "green, white and red",
    sport: "football",
    cities: `
      Rome (Roma) | large national mediterranean | centre | on the Tiber, not far from the sea | the Colosseum | ancient ruins, and the pope's state in its middle | it was the capital of an ancient empire
      Milan (Milano) | large regional subtropical | north | inland, on a plain south of the Alps | a white marble cathedral with countless spires | fashion and design | Leonardo painted the Last Supper there
      Venice (Venezia) | middle regional subtropical | northeast | on islands in a lagoon | Saint Mark's Square | canals and gondolas | it was a maritime republic that was ruled by doges
      Florence (Firenze) | middle regional mediterranean | centre | inland, on the Arno | a cathedral with a giant dome of brick | the art of the Renaissance | the Medici family ruled it
      Naples (Napoli) | large regional mediterranean | south | at a bay, below a volcano | a castle on a small island at the waterfront | the invention of pizza | Greeks founded it as a new town
      Turin (Torino) | million regional subtropical | northwest | inland, on the Po, near the Alps | a building with a very tall spire that holds a film museum | cars, chocolate and a holy shroud | it was host of the winter Olympics in 2006
      Bologna | middle regional subtropical | north | inland, where a plain meets hills | two medieval towers, one of which leans a lot | arcades, meat sauce and the oldest university | its university began in 1088
      Palermo | middle regional mediterranean | south, on a large island | at a bay on the north coast of an island | a chapel of golden mosaics in a Norman palace | street markets and puppet plays | Arabs and then Normans ruled it
      Genoa (Genova) | middle regional mediterranean | northwest | at a gulf of the Mediterranean, below steep hills | a very old lighthouse and a large aquarium | basil pesto and a busy port | Columbus came from there
      Pisa | small regional mediterranean | centre, near the west coast | on the lower Arno, near the sea | a marble bell tower that leans | a tower that students of an old university pass by | Galileo was born there`,
  },
  {
    country: "Spain (España)",
    continent: "Europe",
    region: "southwestern Europe",
    hemisphere: "northern",
    languages: "Spanish",
    currency: "euro",
    religion: "Christianity, mostly Catholic",
    dishes: "tapas, ham and potato omelettes",
    drives: "right",
    government: "a constitutional monarchy with a king or queen",
    flag: "red and yellow",
    sport: "football",
    cities: `
      Madrid | large national steppe | centre | inland, on a high plateau | the Prado museum | art museums, late nights and a royal football club | the court moved there in 1561
      Barcelona | large regional mediterranean languages=Catalan_and_Spanish | northeast | on the Mediterranean coast | a basilica by Gaudí that is still being built | modernist architecture and a football club | it was host of the summer Olympics in 1992
      Seville (Sevilla) | million regional mediterranean | southwest | inland, on the Guadalquivir | the Giralda, a bell tower that was once a minaret | flamenco, orange trees and Holy Week processions | the trade with the Americas went through it
      Valencia (València) | million regional mediterranean languages=Spanish_and_a_form_of_Catalan | east | on the Mediterranean coast | a white, futuristic park of arts and sciences | paella and a festival at which figures are burnt | El Cid conquered it in 1094
      Bilbao (Bilbo) | million regional oceanic languages=Spanish_and_Basque | north | on a river, close to the Bay of Biscay | a museum of curved titanium walls | modern art in a former town of steel | iron ore and shipyards made it rich
      Granada | middle regional mediterranean | south | inland, below the Sierra Nevada | the Alhambra | a Moorish palace with gardens | the last Moorish kingdom fell there in 1492
      Málaga (Malaga) | middle regional mediterranean | south | on the Mediterranean coast | a Moorish fortress above a Roman theatre | being Picasso's birthplace, on a coast of holiday resorts | Phoenicians founded it
      Zaragoza (Saragossa) | middle regional steppe | northeast | inland, on the Ebro | the basilica of Our Lady of the Pillar | an autumn festival of flowers for the Virgin | it withstood Napoleon's troops in a famous siege
      Toledo | small regional steppe | centre | inland, on a hill in a loop of the Tagus | a square fortress with four corner towers above the old town | swords, and paintings by El Greco | it was the capital of the Visigoths
      Salamanca | small regional steppe | west | inland, on the Tormes | an arcaded main square of golden stone | one of the oldest universities of Europe | its university was founded in 1218`,
  },
  {
    country: "Russia (Russian Federation)",
    continent: "Europe",
    region: "eastern Europe and northern Asia",
    hemisphere: "northern",
    languages: "Russian",
    currency: "ruble",
    religion: "Orthodox Christianity",
    dishes: "beetroot soup, dumplings and pancakes",
    drives: "right",
    government: "a federal republic with a president",
    flag: "white, blue and red",
    sport: "ice hockey and football",
    cities: `
      Moscow (Moskva) | huge national continental | west | inland, on a bend of a river | Saint Basil's Cathedral | a red square, a fortress of government and a splendid metro | it burned when Napoleon came in 1812
      Saint Petersburg (St Petersburg, St. Petersburg, Petersburg, Leningrad, Petrograd) | large own continental | northwest | at the Gulf of Finland, in a river delta | the Winter Palace with its art collection | white nights and canals | a tsar founded it in 1703
      Novosibirsk | million regional continental continent=Asia | south of Siberia | inland, on the Ob | an opera house with a huge dome | a town of scientists in a forest nearby | it grew where a railway had to cross a wide river
      Vladivostok | middle regional eastern continent=Asia | far southeast | on a hilly peninsula at the Pacific | a cable-stayed bridge over a bay called the Golden Horn | a naval base at the end of a very long railway | it was closed to foreigners until 1992
      Kazan | million regional continental languages=Russian_and_Tatar | west | inland, on the Volga | a white citadel with a mosque of blue domes | mosques and churches side by side | Ivan the Terrible conquered it in 1552
      Yekaterinburg (Ekaterinburg, Sverdlovsk) | million regional continental continent=Asia | at the Ural mountains | inland, just east of a mountain ridge | a church on the place where a royal family died | heavy industry at the border of two continents | the last tsar was shot there in 1918
      Sochi | middle none subtropical | southwest | on the Black Sea coast, below the Caucasus | an arboretum with a cable car | a seaside resort with palm trees | it was host of the winter Olympics in 2014
      Murmansk | middle regional arctic | northwest | at an ice-free inlet north of the Arctic Circle | a giant statue of a soldier on a hill | northern lights and nuclear icebreakers | it was founded in 1916, and Allied convoys came to it in the Second World War
      Irkutsk | middle regional continental continent=Asia | south of Siberia | inland, on the Angara, near Lake Baikal | streets of carved wooden houses | the way to the deepest lake of the world | officers who had revolted in 1825 were exiled there
      Volgograd (Stalingrad, Tsaritsyn) | million regional steppe | southwest | inland, on the lower Volga | a giant statue of a woman with a sword | one of the largest battles of history | an army was encircled there in the winter of 1942`,
  },
  {
    country: "Canada",
    continent: "North America",
    region: "the north of North America",
    hemisphere: "northern",
    languages: "English",
    currency: "dollar",
    religion: "Christianity, though many have none",
    dishes: "chips with gravy and cheese, salmon and maple syrup",
    drives: "right",
    government: "a federal constitutional monarchy with a parliament",
    flag: "red and white with a leaf",
    sport: "ice hockey",
    cities: `
      Toronto | large regional continental | southeast | on the shore of Lake Ontario | a very tall concrete tower with a glass floor | people from all over the world and a film festival | it was raided in the war of 1812
      Montreal (Montréal) | large none continental languages=French_and_English | southeast | on an island in the Saint Lawrence | an Olympic stadium with a leaning tower | bagels and a jazz festival | it was host of the summer Olympics in 1976
      Vancouver | large none oceanic | west | on the Pacific coast, below mountains | a large park of forest on a peninsula | film making, mountains and sea | it was host of the winter Olympics in 2010
      Ottawa | million national continental languages=English_and_French | southeast | inland, on a river and a canal | a Gothic parliament on a hill | skating on a canal, and tulips | a queen chose it as capital in 1857
      Calgary | million none continental | west | inland, where the prairie meets the Rocky Mountains | an arena with a roof like a saddle | rodeo and oil firms | it was host of the winter Olympics in 1988
      Quebec City (Quebec, Québec, Ville de Québec) | middle regional continental languages=French | east | on a cliff above the Saint Lawrence | a grand hotel like a castle | town walls and a winter carnival | two generals fell in a battle there in 1759
      Winnipeg | middle regional continental | centre | inland, where two rivers meet on the prairie | a museum for human rights with a tower of glass | very cold winters and a royal ballet | it was the scene of a general strike in 1919
      Halifax | middle regional continental | east | on the Atlantic coast, at a deep harbour | a star-shaped fort with a noon gun | lobster and the navy | a ship full of munitions exploded in its harbour in 1917
      Edmonton | million regional continental | west | inland, in a deep river valley on the prairie | a huge shopping mall with a water park | festivals, oil and a famous hockey team | it began as a fort of fur traders
      Saskatoon | middle none continental | west, on the prairie | inland, on a river with many bridges | a grand railway hotel on a river bank | bridges and potash | a society against alcohol founded it in the 1880s`,
  },
  {
    country: "Australia",
    continent: "Oceania",
    region: "the southern Pacific and Indian oceans",
    hemisphere: "southern",
    languages: "English",
    currency: "dollar",
    religion: "Christianity, though many have none",
    dishes: "grilled meat, meat pies and yeast spread on toast",
    drives: "left",
    government: "a federal constitutional monarchy with a parliament",
    flag: "blue with white stars and a small cross",
    sport: "cricket, rugby and a football of its own rules",
    cities: `
      Sydney | large regional subtropical | southeast | at a branching harbour of the Pacific | an opera house with roofs like sails | a harbour, a steel arch bridge and surf beaches | convicts were landed there in 1788
      Melbourne | large regional oceanic | southeast, on the south coast | at a large bay | a railway station with a yellow front and a dome | trams, coffee and a tennis tournament in January | it was host of the summer Olympics in 1956
      Brisbane | large regional subtropical | east | on a winding river, near the Pacific coast | a steel bridge that visitors climb above a winding river | sunshine, and a sanctuary of koalas | it was host of a world's fair in 1988
      Perth | large regional mediterranean | southwest | on the Swan River, near the Indian Ocean | a huge park of wildflowers above a river | being very far from other large towns, and mining firms | it lit all its lights for an astronaut in 1962
      Adelaide | million regional mediterranean | south | on a plain between a gulf and hills | a belt of parks all around the centre | wine valleys nearby and arts festivals | free settlers, not convicts, founded it in 1836
      Canberra | middle national oceanic | southeast | inland, at an artificial lake | a parliament under a hill with a giant flagpole | politics and a geometric plan | it was built as a compromise between two rival towns
      Darwin | small regional tropical | north | on the coast of the Timor Sea | a sunset market on a beach | crocodiles and thunderstorms | a cyclone destroyed it at Christmas in 1974
      Hobart | middle regional oceanic | south, on an island | at a river mouth below a mountain | an underground museum of old and new art | the finish of a yacht race, and ships to Antarctica | it began as a penal colony in 1804
      Cairns | small none tropical | northeast | on the coast of the Coral Sea | a cableway over the rainforest | boat trips to the Great Barrier Reef | it was founded as a port for goldfields in 1876
      Alice Springs (Alice) | small none desert | centre | inland, at a river that is mostly dry | an old telegraph station | the outback and Aboriginal art | it grew from a station of the telegraph line of 1872`,
  },
  {
    country: "Mexico (México)",
    continent: "North America",
    region: "the south of North America",
    hemisphere: "northern",
    languages: "Spanish",
    currency: "peso",
    religion: "Christianity, mostly Catholic",
    dishes: "tacos, tamales and chili sauces",
    drives: "right",
    government: "a federal republic with a president",
    flag: "green, white and red with an eagle",
    sport: "football and boxing",
    cities: `
      Mexico City (Ciudad de México, CDMX) | huge national highland | centre | inland, in a high valley where a lake used to be | a golden angel on a column | murals, museums and ground that sinks | it stands on the ruins of the Aztec capital
      Guadalajara | large regional highland | west | inland, on a highland plain | an old hospice with murals of fire by Orozco | mariachi music, with tequila made nearby | it was founded for good in 1542
      Monterrey | large regional dry | northeast | inland, below bare mountains | a mountain in the shape of a saddle | industry and roasted kid | it was founded in 1596 and fought over in 1846
      Puebla | large regional highland | centre | inland, in a high valley among volcanoes | a library of the seventeenth century | chocolate-chili sauce and painted tiles | an invading army was beaten there on the fifth of May 1862
      Tijuana | million none dry | northwest | on the Pacific coast, at the border | a steel arch at the head of the main avenue | a very busy border crossing and Caesar salad | it boomed when its neighbours had forbidden alcohol
      Cancún (Cancun) | middle none tropical | southeast | on the Caribbean coast | an underwater museum of sculptures | beach hotels and spring break | it was planned as a resort in the 1970s
      Oaxaca (Oaxaca de Juárez, Oaxaca City) | middle regional highland | south | inland, in a valley among mountains | a richly gilded church of Dominican friars | mezcal, weaving and the Day of the Dead | ruins of the Zapotecs lie on a hill above it
      Acapulco | middle none tropical | south | at a bay of the Pacific | a cliff from which divers jump | cliff divers and the glamour of the 1950s | galleons from Manila landed there
      Mérida (Merida) | million regional tropical | southeast | inland, on a flat peninsula | a boulevard of mansions that is named for a conqueror | white buildings and Mayan culture | sisal made it rich around 1900
      Veracruz | middle none tropical | east | on the Gulf coast | an island fortress in the harbour | a busy port, coffee and carnival | Cortés landed there in 1519`,
  },
  {
    country: "Turkey (Türkiye)",
    continent: "Asia",
    region: "western Asia, with a corner in Europe",
    hemisphere: "northern",
    languages: "Turkish",
    currency: "lira",
    religion: "Islam",
    dishes: "kebabs, stuffed vine leaves and sweet pastries",
    drives: "right",
    government: "a republic with a strong president",
    flag: "red with a white crescent and star",
    sport: "football and wrestling",
    cities: `
      Istanbul (Constantinople, Byzantium) | huge regional mediterranean continent=both_Europe_and_Asia | northwest | on both sides of the Bosporus | Hagia Sophia | bazaars, mosques and two continents | it was the capital of the Byzantine and Ottoman empires
      Ankara | large national steppe | centre | inland, on a high plateau | the mausoleum of Atatürk | government offices, and goats and cats with long hair | it became the capital in 1923
      Izmir (İzmir, Smyrna) | large regional mediterranean | west | at a gulf of the Aegean Sea | a clock tower on a square at the sea | figs, a trade fair and a seaside promenade | a great fire destroyed it in 1922
      Antalya | million regional mediterranean | southwest | on the Mediterranean coast, below mountains | a triple marble gate built for the emperor Hadrian | beach resorts and ancient ruins | a king of Pergamon founded it
      Bursa | million regional mediterranean | northwest | inland, at the foot of a high mountain | a grand mosque of twenty domes | silk, candied chestnuts and skiing | it was the first great capital of the Ottomans
      Konya (Iconium) | million regional steppe | centre | inland, on a wide, dry plateau | a turquoise dome over the tomb of Rumi | whirling dervishes | it was the capital of the Seljuk sultans
      Trabzon (Trebizond) | middle regional oceanic | northeast | on the Black Sea coast | a monastery on a cliff nearby | hazelnuts, anchovies and tea | a small Byzantine empire lasted there until 1461
      Gaziantep (Antep) | million regional steppe | southeast | inland, on a dry plain | a museum of Roman mosaics | pistachios and baklava | it earned a title of honour for its defence in 1921
      Adana | million regional mediterranean | south | inland, on a hot plain near the Mediterranean | a Roman stone bridge and a mosque with six minarets | spicy minced meat on a skewer, and cotton | cotton made it grow in the nineteenth century
      Bodrum (Halicarnassus) | small none mediterranean | southwest | on a peninsula in the Aegean Sea | a seaside castle of the Knights of Saint John | yachts, white houses and summer nights | one of the seven ancient wonders, a king's tomb, stood there`,
  },
  {
    test: true,
    country: "Poland (Polska)",
    continent: "Europe",
    region: "central Europe",
    hemisphere: "northern",
    languages: "Polish",
    currency: "zloty",
    religion: "Christianity, mostly Catholic",
    dishes: "filled dumplings, sauerkraut stew and sour rye soup",
    drives: "right",
    government: "a republic with a parliament and a president",
    flag: "white and red",
    sport: "football, volleyball and ski jumping",
    cities: `
      Warsaw (Warszawa) | large national continental | centre, towards the east | inland, on the Vistula | a palace of culture that Stalin gave | an old town that was built again, and Chopin | it was destroyed after an uprising in 1944
      Kraków (Krakow, Cracow) | million regional continental | south | inland, on the upper Vistula | the royal castle on Wawel hill | a huge market square and a legend of a dragon | it was the kings' seat until about 1600
      Gdańsk (Gdansk, Danzig) | million regional oceanic | north | on the Baltic coast | a medieval harbour crane of wood | amber and shipyards | a free trade union was founded in its shipyard in 1980
      Wrocław (Wroclaw, Breslau) | middle regional oceanic | southwest | inland, on islands in the Oder | a round concrete hall of 1913 | hundreds of little bronze dwarfs in the streets | nearly all its people were replaced after 1945
      Poznań (Poznan, Posen) | middle regional oceanic | west | inland, on the Warta | a town hall with two mechanical goats | trade fairs and sweet croissants | workers rose against the regime there in 1956
      Łódź (Lodz) | middle regional continental | centre | inland, on no large river | a shopping street more than four kilometres long | a film school and old textile mills | it grew from a village to an industrial town in a few decades
      Lublin | middle regional continental | east | inland, on low hills | a castle chapel with Byzantine frescoes | onion flatbread and an old town on a hill | a union of two states was signed there in 1569
      Katowice | million regional continental | south | inland, in a coal basin | an arena in the shape of a flying saucer | coal mines, music and red-brick estates | it grew from a village when coal and steel came
      Szczecin (Stettin) | middle regional oceanic | northwest | on the lower Oder, close to the border | a white concert hall that looks like ice | a port, and wide star-shaped squares | the empress Catherine the Great was born there
      Toruń (Torun, Thorn) | small regional continental | north | inland, on the lower Vistula | a leaning tower in a medieval town wall | gingerbread and Copernicus | the Teutonic Knights founded it`,
  },
  {
    test: true,
    country: "South Africa (RSA)",
    continent: "Africa",
    region: "the southern end of its continent",
    hemisphere: "southern",
    languages: "English, Afrikaans, Zulu, Xhosa and others",
    currency: "rand",
    religion: "Christianity",
    dishes: "grilled meat, maize porridge and dried meat",
    drives: "left",
    government: "a republic whose president is elected by parliament",
    flag: "six colours, with a green Y",
    sport: "rugby, cricket and football",
    cities: `
      Cape Town (Kaapstad) | large third mediterranean | southwest | at a bay of the Atlantic, below a flat mountain | Table Mountain | a mountain, wine nearby and a prison island | the Dutch made it a station for their ships in 1652
      Johannesburg (Joburg, Jozi) | large regional highland | northeast | inland, on a high plateau | a former prison that houses the constitutional court | gold, business and the township of Soweto | a gold rush founded it in 1886
      Durban (eThekwini) | large none subtropical | east | on the Indian Ocean coast | a stadium under a great arch | surfing, a busy port and curry in bread | Gandhi worked as a lawyer there
      Pretoria (Tshwane) | large third highland | northeast | inland, among low hills | the Union Buildings | purple jacaranda trees and embassies | Mandela was sworn in as president there in 1994
      Gqeberha (Port Elizabeth, PE) | million none oceanic | south | at a bay of the Indian Ocean | a stone pyramid beside a lighthouse | car factories, wind and elephants nearby | settlers from overseas landed there in 1820
      Bloemfontein (Mangaung) | middle third highland | centre | inland, on a high grassy plain | a hill with a giant statue of Mandela | roses and the court of appeal | Tolkien was born there
      Kimberley | middle regional dry | north, in the middle | inland, on a dry plain | the Big Hole, a mine dug by hand | diamonds | it was besieged in the war that began in 1899
      East London (eMonti) | middle none subtropical | southeast | on the Indian Ocean coast, at a river mouth | a museum with a coelacanth | a river port and surf beaches | a fish thought to be extinct was found there in 1938
      Stellenbosch | small none mediterranean | southwest | inland, in a valley among mountains | white gabled houses under oak trees | wine and a university | it was founded in 1679 and named for a governor
      Pietermaritzburg (Maritzburg) | middle regional subtropical | east | inland, in a hollow among hills | a very large city hall of red brick | an ultramarathon to the coast | Gandhi was put off a train there in 1893`,
  },
  {
    test: true,
    country: "South Korea (Korea, Republic of Korea)",
    continent: "Asia",
    region: "a peninsula in eastern Asia",
    hemisphere: "northern",
    languages: "Korean",
    currency: "won",
    religion: "Christianity and Buddhism, though many have none",
    dishes: "kimchi, rice with vegetables and grilled beef",
    drives: "right",
    government: "a republic with a president",
    flag: "white with a red and blue circle and black bars",
    sport: "football, baseball and taekwondo",
    cities: `
      Seoul | huge national eastern | northwest | inland, on the wide Han River | a royal palace with a change of guards, below a granite mountain | pop music, electronics and palaces | it was host of the summer Olympics in 1988
      Busan (Pusan) | large own subtropical | southeast | on the coast, among hills | a hillside village of colourful houses | a film festival, a huge port and beaches | it was the refuge of the government in the war of 1950
      Incheon (Inchon) | large own eastern | northwest | on the coast of the Yellow Sea | a very long bridge to an island airport | the country's main airport | troops landed there in September 1950
      Daegu (Taegu) | large own eastern | southeast | inland, in a basin among mountains | a stone Buddha with a flat hat on a mountain | textiles, apples and very hot summers | it was host of the athletics world championships in 2011
      Daejeon (Taejon) | million own eastern | centre | inland, where railway lines meet | a science park with a bridge from a world's fair | research institutes and a famous bakery | it was host of an exposition in 1993
      Gwangju (Kwangju) | million own eastern | southwest | inland, below Mount Mudeung | columns of rock on top of a mountain | an art biennale and good food | its people rose for democracy in May 1980
      Suwon | million regional eastern | northwest | inland, south of the capital | a fortress wall with gates of the 1790s | grilled ribs and the seat of an electronics firm | a king built its walls to honour his father
      Ulsan | million own subtropical | southeast | on the coast, at a river mouth | a museum of whales | the largest shipyard and car factories | it was made a centre of industry in 1962
      Jeju City (Jeju) | middle regional subtropical | far south, on an island | on the north coast of a volcanic island | a rock in the shape of a dragon's head | tangerines, honeymoons and women who dive | an island kingdom had its seat there
      Gyeongju (Kyongju) | middle none eastern | southeast | inland, in a basin near the coast | grass-covered royal tombs in the middle of town | temples and tombs | it was the capital of Silla for almost a thousand years`,
  },
];
