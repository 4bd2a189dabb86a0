"""Simple parallel sentences and day stories from word lists: our own text, always the same.

Two disjoint template families, so that evaluation sentences (first family) are not lines or
parts of the generated documents (second family).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Word = tuple[str, str]

PEOPLE: tuple[Word, ...] = (
    ("my father", "我爸爸"), ("my mother", "我妈妈"), ("the teacher", "老师"),
    ("the farmer", "农夫"), ("her brother", "她哥哥"), ("his sister", "他妹妹"),
    ("our neighbour", "我们的邻居"), ("the old doctor", "老医生"), ("the young cook", "年轻的厨师"),
    ("the driver", "司机"), ("my best friend", "我最好的朋友"), ("the little girl", "小女孩"),
    ("the engineer", "工程师"), ("the singer", "歌手"), ("the shopkeeper", "店主"),
    ("the student", "学生"),
)  # fmt: skip
# English plural, Chinese noun, Chinese measure word.
THINGS: tuple[tuple[str, str, str], ...] = (
    ("books", "书", "本"), ("apples", "苹果", "个"), ("cups", "杯子", "只"),
    ("chairs", "椅子", "把"), ("letters", "信", "封"), ("pictures", "画", "幅"),
    ("keys", "钥匙", "把"), ("flowers", "花", "朵"), ("hats", "帽子", "顶"),
    ("tickets", "票", "张"), ("pens", "钢笔", "支"), ("eggs", "鸡蛋", "个"),
    ("maps", "地图", "张"), ("knives", "刀", "把"), ("shirts", "衬衫", "件"),
    ("umbrellas", "雨伞", "把"), ("bottles of water", "水", "瓶"), ("watches", "手表", "块"),
)  # fmt: skip
NUMBERS: tuple[Word, ...] = (
    ("two", "两"), ("three", "三"), ("four", "四"), ("five", "五"), ("six", "六"),
    ("seven", "七"), ("eight", "八"), ("nine", "九"), ("ten", "十"), ("twelve", "十二"),
)  # fmt: skip
COLOURS: tuple[Word, ...] = (
    ("red", "红色"), ("blue", "蓝色"), ("green", "绿色"), ("white", "白色"),
    ("black", "黑色"), ("yellow", "黄色"), ("grey", "灰色"),
)  # fmt: skip
PLACES: tuple[Word, ...] = (
    ("in the garden", "在花园里"), ("at the station", "在车站"), ("in the kitchen", "在厨房里"),
    ("at school", "在学校"), ("by the river", "在河边"), ("in the library", "在图书馆"),
    ("on the roof", "在屋顶上"), ("in the market", "在市场上"), ("at home", "在家里"),
    ("under the old tree", "在老树下"), ("in the office", "在办公室"), ("on the bridge", "在桥上"),
)  # fmt: skip
GOALS: tuple[Word, ...] = (
    ("to the station", "去车站"), ("to the market", "去市场"), ("to the hospital", "去医院"),
    ("to the lake", "去湖边"), ("to the museum", "去博物馆"), ("to the mountains", "去山里"),
    ("to the post office", "去邮局"), ("to the village", "去村里"),
)  # fmt: skip
TIMES: tuple[Word, ...] = (
    ("this morning", "今天早上"), ("yesterday", "昨天"), ("last week", "上个星期"),
    ("on Monday", "星期一"), ("on Friday", "星期五"), ("last night", "昨晚"),
    ("in spring", "春天"), ("last year", "去年"), ("two days ago", "两天前"),
)  # fmt: skip
ACTIONS: tuple[tuple[str, str, str], ...] = (
    ("reads a book", "看书", "reading a book"), ("drinks tea", "喝茶", "drinking tea"),
    ("plays chess", "下棋", "playing chess"), ("writes letters", "写信", "writing letters"),
    ("sings", "唱歌", "singing"), ("cooks rice", "煮饭", "cooking rice"),
    ("repairs bicycles", "修自行车", "repairing bicycles"),
    ("learns English", "学英语", "learning English"),
    ("learns Chinese", "学中文", "learning Chinese"),
    ("cleans the windows", "擦窗户", "cleaning the windows"),
    ("waters the plants", "浇花", "watering the plants"),
    ("listens to music", "听音乐", "listening to music"),
    ("sleeps", "睡觉", "sleeping"), ("runs", "跑步", "running"), ("works", "工作", "working"),
    ("takes photographs", "拍照", "taking photographs"),
)  # fmt: skip
ANIMALS: tuple[tuple[str, str], ...] = (
    ("dog", "狗"), ("cat", "猫"), ("horse", "马"), ("bird", "鸟"), ("rabbit", "兔子"),
    ("duck", "鸭子"), ("sheep", "羊"), ("monkey", "猴子"), ("fish", "鱼"), ("mouse", "老鼠"),
)  # fmt: skip
QUALITIES: tuple[Word, ...] = (
    ("big", "大"), ("small", "小"), ("fast", "快"), ("old", "老"), ("quiet", "安静"),
    ("clever", "聪明"), ("strong", "强壮"), ("heavy", "重"), ("beautiful", "漂亮"),
)  # fmt: skip
FOODS: tuple[Word, ...] = (
    ("noodles", "面条"), ("rice", "米饭"), ("soup", "汤"), ("fish", "鱼"), ("bread", "面包"),
    ("dumplings", "饺子"), ("vegetables", "蔬菜"), ("fruit", "水果"), ("eggs", "鸡蛋"),
    ("porridge", "粥"), ("beans", "豆子"), ("cake", "蛋糕"),
)  # fmt: skip
WEATHER: tuple[Word, ...] = (
    ("it is raining", "下雨"), ("it is snowing", "下雪"), ("the sun is shining", "出太阳"),
    ("the wind is strong", "刮大风"), ("it is hot", "天热"), ("it is cold", "天冷"),
)  # fmt: skip


class Picker:
    """Reproducible choices from a counter and sha256 (no library's generator can change them)."""

    def __init__(self, seed: str) -> None:
        self._seed, self._count = seed, 0

    def below(self, limit: int) -> int:
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % limit

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def two(self, items: Sequence[Item]) -> tuple[Item, Item]:
        """Two different ones."""
        first = self.below(len(items))
        return items[first], items[(first + 1 + self.below(len(items) - 1)) % len(items)]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _sentence(p: Picker) -> Word:
    """One pair of the first family."""
    (who, other), (animal, animal2) = p.two(PEOPLE), p.two(ANIMALS)
    thing, noun, measure = p.pick(THINGS)
    number, colour, place, time = (
        p.pick(NUMBERS),
        p.pick(COLOURS),
        p.pick(PLACES),
        p.pick(TIMES),
    )
    action, food, quality = p.pick(ACTIONS), p.pick(FOODS), p.pick(QUALITIES)
    goal, weather = p.pick(GOALS), p.pick(WEATHER)
    age = 20 + p.below(60)
    price, hour = 2 + p.below(90), 1 + p.below(12)
    rows: tuple[Word, ...] = (
        (f"{who[0]} bought {number[0]} {thing} {time[0]}.",
         f"{time[1]}{who[1]}买了{number[1]}{measure}{noun}。"),
        (f"There are {number[0]} {colour[0]} {thing} {place[0]}.",
         f"{place[1].removeprefix('在')}有{number[1]}{measure}{colour[1]}的{noun}。"),
        (f"{who[0]} {action[0]} {place[0]}.", f"{who[1]}{place[1]}{action[1]}。"),
        (f"{who[0]} does not like {food[0]}.", f"{who[1]}不喜欢吃{food[1]}。"),
        (f"{who[0]} likes {food[0]} very much.", f"{who[1]}很喜欢吃{food[1]}。"),
        (f"Is {who[0]} {action[2]} {place[0]}?", f"{who[1]}是{place[1]}{action[1]}吗？"),
        (f"The {animal[0]} is not as {quality[0]} as the {animal2[0]}.",
         f"这只{animal[1]}没有那只{animal2[1]}{quality[1]}。"),
        (f"Is the {colour[0]} {animal[0]} really so {quality[0]}?",
         f"{colour[1]}的{animal[1]}真的那么{quality[1]}吗？"),
        (f"{who[0]} went {goal[0]} {time[0]}.", f"{time[1]}{who[1]}{goal[1]}了。"),
        (f"When {weather[0]}, {who[0]} stays at home.", f"{weather[1]}的时候，{who[1]}待在家里。"),
        (f"{who[0]} is {age} years old.", f"{who[1]}{age}岁。"),
        (f"The {colour[0]} {thing} cost {price} yuan.", f"{colour[1]}的{noun}{price}块钱。"),
        (f"{who[0]} gave {other[0]} {number[0]} {thing}.",
         f"{who[1]}给了{other[1]}{number[1]}{measure}{noun}。"),
        (f"Where did {who[0]} put the {colour[0]} {thing}?",
         f"{who[1]}把{colour[1]}的{noun}放在哪里了？"),
        (f"We meet {who[0]} {place[0]} at {hour} o'clock.",
         f"我们{hour}点{place[1]}和{who[1]}见面。"),
        (f"Please bring {number[0]} {thing} and some {food[0]}.",
         f"请带{number[1]}{measure}{noun}和一些{food[1]}。"),
        (f"{who[0]} lost the {thing} {time[0]}.", f"{time[1]}{who[1]}弄丢了{noun}。"),
        (f"I saw a {colour[0]} {animal[0]} {place[0]}.",
         f"我{place[1]}看见一只{colour[1]}的{animal[1]}。"),
        (f"{who[0]} asked {other[0]} for the {thing}.", f"{who[1]}向{other[1]}要{noun}。"),
    )  # fmt: skip
    en, zh = p.pick(rows)
    return _capital(en), zh


def sentences(count: int) -> list[Word]:
    """``count`` different pairs."""
    picker = Picker("sentences")
    found: dict[str, str] = {}
    while len(found) < count:
        en, zh = _sentence(picker)
        found.setdefault(en, zh)
    return list(found.items())


_ENDINGS: tuple[Word, ...] = (
    ("It had been a long day, and the bed was warm.", "这一天很长，被窝很暖和。"),
    (
        "Before sleeping, there was still time for one page.",
        "睡觉以前，还有时间看一页书。",
    ),
    (
        "The moon stood above the roofs, and the street was still.",
        "月亮挂在屋顶上，街上静静的。",
    ),
    (
        "Nothing special had happened, and that was good.",
        "没有发生什么特别的事，这样就很好。",
    ),
    ("Tomorrow would bring the rest.", "剩下的事，明天再说。"),
    ("In the end everybody laughed about it.", "最后大家都笑了。"),
)
_SURPRISES: tuple[Word, ...] = (
    ("On the way a wheel came off a cart, and everyone helped to push it aside.",
     "路上有辆车掉了一个轮子，大家帮忙把它推到一边。"),
    ("Suddenly the sky turned dark, and there was nowhere to hide from the rain.",
     "天忽然黑了，雨下起来，没有地方可躲。"),
    ("Somebody had left a door open, and the wind carried papers through the hall.",
     "不知谁忘了关门，风把纸吹得满屋都是。"),
    ("A boy ran past with a kite that was larger than himself.",
     "一个男孩举着比自己还大的风筝跑了过去。"),
    ("The telephone rang twice and then stopped.", "电话响了两声就停了。"),
    ("An old song came from a window, and several people stood still to hear it.",
     "从窗口传来一首老歌，好几个人停下脚步听。"),
    ("There was no light in the whole house until the evening.", "整座房子一直到晚上都没有电。"),
    ("A cart with melons had stopped at the corner, and the first slice was free.",
     "街角停着一辆卖瓜的车，第一片不要钱。"),
)  # fmt: skip
_MORNINGS: tuple[Word, ...] = (
    ("woke up before the alarm", "闹钟还没响就醒了"),
    ("got up late and skipped breakfast", "起晚了，没吃早饭"),
    ("opened the curtains and looked at the clouds", "拉开窗帘，看了看云"),
    ("found a note on the kitchen table", "在厨房的桌上看见一张字条"),
    ("put on two different socks without noticing", "穿了两只不一样的袜子，自己没发现"),
    ("made a pot of tea and forgot it", "泡了一壶茶，又忘了喝"),
)  # fmt: skip
_TASKS: tuple[Word, ...] = (
    ("carry a heavy box up five flights of stairs", "把一个重箱子搬上五楼"),
    ("find the owner of a lost glove", "找到一只手套的失主"),
    ("explain a difficult word to a child", "给一个孩子讲清楚一个难懂的词"),
    ("count all the lamps along the road", "数清路边所有的灯"),
    ("repair the handle of a drawer", "修好抽屉的把手"),
    ("copy a long list by hand", "用手抄完一份长长的名单"),
    ("paint the gate before the guests came", "在客人来之前把大门刷好"),
    ("teach a parrot to say good evening", "教一只鹦鹉说晚上好"),
    ("return a book that was three years late", "还掉一本迟了三年的书"),
    ("choose a present for a man who had everything", "给一个什么都有的人挑一件礼物"),
)  # fmt: skip
_HELP: tuple[Word, ...] = (
    ("It took longer than planned", "花的时间比想的要长"),
    ("It was easier than it looked", "做起来比看上去容易"),
    ("Nobody had said how to begin", "没有人说过该从哪里开始"),
    ("The first attempt failed", "第一次没有成功"), ("It needed four hands", "这件事要四只手才行"),
)  # fmt: skip
_RESULTS: tuple[Word, ...] = (
    ("but with a little patience it worked", "不过有点耐心就成了"),
    ("so a passer-by was asked for advice", "只好向过路的人请教"),
    ("and by noon half of it was done", "到中午才做完一半"),
    ("yet nobody complained", "可是谁也没有抱怨"),
    ("and still it was worth the trouble", "但还是值得费这个力气"),
)  # fmt: skip


def stories(count: int) -> Iterator[tuple[str, str]]:
    """``count`` short day stories of the second family, as (English, Chinese) paragraphs."""
    p = Picker("stories")
    for number in range(count):
        who, helper = p.two(PEOPLE)
        morning, task, ease, result = (
            p.pick(_MORNINGS),
            p.pick(_TASKS),
            p.pick(_HELP),
            p.pick(_RESULTS),
        )
        surprise, ending, food = p.pick(_SURPRISES), p.pick(_ENDINGS), p.pick(FOODS)
        day = 1 + number
        parts: list[Word] = [
            (f"Day {day}: {who[0]} {morning[0]}.", f"第{day}天，{who[1]}{morning[1]}。"),
            (f"The plan was to {task[0]}.", f"原来的打算是{task[1]}。"),
            (f"{ease[0]}, {result[0]}.", f"{ease[1]}，{result[1]}。"),
            surprise,
            (f"Later {helper[0]} came by with some {food[0]}, and they shared it.",
             f"后来{helper[1]}带着一些{food[1]}过来，两个人分着吃了。"),
            ending,
        ]  # fmt: skip
        if p.below(2):
            parts[2], parts[3] = parts[3], parts[2]
        if p.below(3) == 0:
            parts.pop(4)
        yield " ".join(en for en, _ in parts), "".join(zh for _, zh in parts)
