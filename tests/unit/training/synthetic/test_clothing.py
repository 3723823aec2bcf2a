"""Outfits and layers on tube people."""

from dataclasses import replace

import torch

from tests.unit.training.synthetic.shapes import rng
from vitruvian.human import PART_INDEX
from vitruvian.training.synthetic.asset_pack import MATERIALS_PER_SLOT, MEN, SLOT, SLOTS, WOMEN, AssetPack
from vitruvian.training.synthetic.clothing import _BARE_STYLES, Outfit, choose_outfit, dress
from vitruvian.training.synthetic.materials import Pattern, _cloth_colors, _hair_colors, _patterns, sample_materials
from vitruvian.training.synthetic.posing import skin_vertices


def traits(count: int, gender: float, age: float) -> torch.Tensor:
    return torch.tensor([[gender, age, 0.5, 0.5]]).expand(count, 4).contiguous()


def wearing(pack: AssetPack, **pieces: str) -> Outfit:
    """One person in the named pieces, cloth uncrumpled."""
    worn = torch.full((1, len(SLOTS)), -1)
    worn[0, 0] = 0
    for slot, name in pieces.items():
        worn[0, SLOT[slot]] = pack.wardrobe.names.index(name)
    return Outfit(worn, torch.zeros(1, dtype=torch.bool), torch.ones(1, len(SLOTS)), torch.zeros(1, len(SLOTS), 5, 4))


def rest(pack: AssetPack, count: int = 1) -> torch.Tensor:
    return pack.body.vertex_mean.expand(count, -1, -1).clone()


def slot_vertices(pack: AssetPack, dressed, slot: str) -> torch.Tensor:
    """Vertices of a slot that faces use."""
    faces = dressed.faces[0][dressed.face_material[0] // MATERIALS_PER_SLOT == SLOT[slot]]
    faces = faces[(faces != 0).any(1)]
    return dressed.vertices[0, faces.unique()]


def test_children_wear_no_revealing_clothes(pack: AssetPack):
    outfit = choose_outfit(pack, traits(300, 0.0, 0.4), torch.zeros(300, dtype=torch.bool), rng())
    styles = [
        pack.wardrobe.styles[i] for i in outfit.pieces[:, [SLOT["upper"], SLOT["lower"]]].flatten().tolist() if i > 0
    ]
    assert not set(styles) & set(_BARE_STYLES)
    assert (outfit.pieces[:, SLOT["upper"]] > 0).all()
    assert (outfit.pieces[:, SLOT["lower"]] > 0).all()
    adults = choose_outfit(pack, traits(300, 0.0, 0.8), torch.zeros(300, dtype=torch.bool), rng())
    worn = adults.pieces[:, SLOT["lower"]].tolist()
    assert "swim" in {pack.wardrobe.styles[i] for i in worn}


def test_pieces_match_gender_and_slot(pack: AssetPack):
    for gender, wrong in ((0.0, WOMEN), (1.0, None)):
        outfit = choose_outfit(pack, traits(200, gender, 0.8), torch.ones(200, dtype=torch.bool), rng(1))
        for slot in range(len(SLOTS)):
            worn = outfit.pieces[:, slot]
            worn = worn[worn >= 0]
            assert (pack.wardrobe.slot[worn] == slot).all()
            assert wrong is None or (pack.wardrobe.suits[worn] != wrong).all()
    assert (outfit.pieces[:, SLOT["upper"]] >= 0).all()  # women always wear a top


def test_everyone_wears_something_below(pack: AssetPack):
    outfit = choose_outfit(pack, traits(300, 1.0, 0.8), torch.zeros(300, dtype=torch.bool), rng(2))
    dress_worn = torch.tensor([pack.wardrobe.styles[i] == "dress" for i in outfit.pieces[:, SLOT["upper"]].tolist()])
    assert dress_worn.any()
    assert ((outfit.pieces[:, SLOT["lower"]] >= 0) | dress_worn).all()


def test_teeth_only_in_open_mouths(pack: AssetPack):
    mouth = torch.tensor([True, False]).repeat(20)
    outfit = choose_outfit(pack, traits(40, 1.0, 0.8), mouth, rng())
    assert torch.equal(outfit.pieces[:, SLOT["teeth"]] >= 0, mouth)
    assert torch.equal(outfit.pieces[:, SLOT["tongue"]] >= 0, mouth)


def test_a_slot_without_pieces_stays_empty(pack: AssetPack):
    slot = torch.where(pack.wardrobe.slot == SLOT["hat"], SLOT["trinket"], pack.wardrobe.slot)
    bare = replace(pack, wardrobe=replace(pack.wardrobe, slot=slot))
    outfit = choose_outfit(bare, traits(50, 1.0, 0.8), torch.zeros(50, dtype=torch.bool), rng())
    assert (outfit.pieces[:, SLOT["hat"]] == -1).all()
    assert dress(bare, outfit, rest(bare, 50)).faces.shape[0] == 50


def test_unclothed_body_has_all_faces(pack: AssetPack):
    dressed = dress(pack, wearing(pack), rest(pack))
    assert int((dressed.face_class > 0).sum()) == int(pack.wardrobe.face_count[0])
    assert torch.allclose(slot_vertices(pack, dressed, "body"), pack.body.vertex_mean, atol=1e-6)


def test_covered_faces_are_dropped(pack: AssetPack):
    dressed = dress(pack, wearing(pack, upper="shirt", lower="trousers"), rest(pack))
    seen = set(dressed.face_class[0].tolist())
    assert {
        PART_INDEX["Upper_Clothing"],
        PART_INDEX["Lower_Clothing"],
        PART_INDEX["Left_Hand"],
        PART_INDEX["Left_Foot"],
    } <= seen
    assert not seen & {PART_INDEX["Torso"], PART_INDEX["Left_Lower_Arm"], PART_INDEX["Right_Upper_Leg"]}


def test_coat_is_outside_the_shirt(pack: AssetPack):
    alone = dress(pack, wearing(pack, upper="shirt"), rest(pack))
    under = dress(pack, wearing(pack, upper="shirt", outer="coat"), rest(pack))
    counts = [
        int((d.face_material[0][d.face_class[0] > 0] // MATERIALS_PER_SLOT == SLOT["upper"]).sum())
        for d in (alone, under)
    ]
    assert 0 < counts[1] < counts[0]  # the forearms of the shirt look out


def test_inner_layers_are_moved_towards_the_body(pack: AssetPack):
    """Trousers under an untucked top lie close to the body; tucked in, the top does."""
    covers = pack.wardrobe.covers.clone()
    covers[pack.wardrobe.names.index("shirt")] = True
    covers[pack.wardrobe.names.index("trousers")] = True
    hides = torch.zeros_like(pack.wardrobe.hides)
    wide = replace(pack, wardrobe=replace(pack.wardrobe, covers=covers, hides=hides))
    outfit = wearing(wide, upper="shirt", lower="trousers")

    def stand_off(outfit: Outfit, slot: str) -> float:
        near = torch.cdist(slot_vertices(wide, dress(wide, outfit, rest(wide)), slot), wide.body.vertex_mean)
        return float(near.amin(1).mean())

    assert stand_off(outfit, "lower") < 0.005 < 0.01 < stand_off(outfit, "upper")
    tucked = replace(outfit, tucked=torch.ones(1, dtype=torch.bool))
    assert stand_off(tucked, "upper") < 0.005 < 0.01 < stand_off(tucked, "lower")


def test_hair_ends_at_the_hat(pack: AssetPack):
    hats = dress(pack, wearing(pack, hair="hair", hat="hat"), rest(pack))
    free = dress(pack, wearing(pack, hair="hair"), rest(pack))
    counts = [int((d.face_class[0] == PART_INDEX["Hair"]).sum()) for d in (free, hats)]
    assert counts[1] < counts[0]


def test_socks_end_at_the_hem(pack: AssetPack):
    dressed = dress(pack, wearing(pack, shoes="socks", lower="trousers"), rest(pack))
    hem = slot_vertices(pack, dressed, "lower")[:, 2].min()
    assert slot_vertices(pack, dressed, "shoes")[:, 2].max() <= hem + 0.0061
    bare = dress(pack, wearing(pack, shoes="socks"), rest(pack))
    assert slot_vertices(pack, bare, "shoes")[:, 2].max() > hem + 0.05


def test_clothes_fit_larger_people(pack: AssetPack):
    outfit = wearing(pack, upper="shirt")
    body = rest(pack)
    small, large = (
        slot_vertices(pack, dress(pack, outfit, body), "upper"),
        slot_vertices(pack, dress(pack, outfit, body * 1.2), "upper"),
    )
    offset = (large - 1.2 * small).abs().max()
    assert 0 < offset < 0.2 * 0.016  # all but the thickness of the cloth grows


def test_offsets_grow_with_the_span_they_name(pack: AssetPack):
    wardrobe = pack.wardrobe
    shirt = wardrobe.names.index("shirt")
    ids, base = wardrobe.scale_ids.clone(), wardrobe.scale_base.clone()
    ids[shirt] = torch.tensor([[0, 700], [0, 700], [0, 700]])
    base[shirt] = (pack.body.vertex_mean[0] - pack.body.vertex_mean[700]).abs() / 2
    scaled = replace(pack, wardrobe=replace(wardrobe, scale_ids=ids, scale_base=base))
    outfit = wearing(pack, upper="shirt")
    plain, twice = (slot_vertices(p, dress(p, outfit, rest(p)), "upper") for p in (pack, scaled))
    moved = (twice - plain).norm(dim=-1)
    has_span = base[shirt] > 0
    assert has_span.any()
    assert 0.01 < float(moved.max()) <= 0.0151


def test_creases_move_cloth_but_not_skin(pack: AssetPack):
    outfit = wearing(pack, upper="shirt")
    creases = torch.zeros(1, len(SLOTS), 5, 4)
    creases[..., 0], creases[..., 3] = 60.0, 0.002
    crumpled = replace(outfit, creases=creases)
    plain, wavy = (dress(pack, o, rest(pack)) for o in (outfit, crumpled))
    assert (slot_vertices(pack, wavy, "upper") - slot_vertices(pack, plain, "upper")).norm(dim=-1).max() > 0.003
    assert torch.equal(slot_vertices(pack, wavy, "body"), slot_vertices(pack, plain, "body"))


def test_skinning_averages_three_body_vertices(pack: AssetPack):
    dressed = dress(pack, wearing(pack), rest(pack))
    ids = torch.tensor([[[3, 9, 20]]])
    weights = torch.nn.functional.normalize(torch.tensor([[[0.5, 1.0, -0.3]]]).clamp_min(0), p=1.0, dim=-1)
    one = replace(dressed, vertices=torch.tensor([[[1.0, 2.0, 3.0]]]), ids=ids, weights=weights)
    transforms = torch.randn(1, len(pack.body.vertex_mean), 3, 4, generator=torch.Generator().manual_seed(0))
    expected = (transforms[0, 3] / 3 + transforms[0, 9] * 2 / 3) @ torch.tensor([1.0, 2.0, 3.0, 1.0])
    assert torch.allclose(skin_vertices(one.vertices, one.ids, one.weights, transforms)[0, 0], expected, atol=1e-5)


def test_skinning_weights_sum_to_one(pack: AssetPack):
    weights = pack.wardrobe.vertex_weights.clone()
    weights[5] = torch.tensor([1.2, 0.3, -0.5])
    skewed = replace(pack, wardrobe=replace(pack.wardrobe, vertex_weights=weights))
    dressed = dress(skewed, wearing(skewed), rest(skewed))
    assert torch.allclose(dressed.weights[0, 5], torch.tensor([0.8, 0.2, 0.0]), atol=1e-6)
    assert torch.allclose(dressed.weights[dressed.present].sum(-1), torch.ones(int(dressed.present.sum())), atol=1e-5)


def test_categorical_rows_follow_the_weights():
    weights = torch.tensor([[0.0, 1.0, 3.0]]).expand(4000, 3)
    share = torch.bincount(rng().categorical_rows(weights), minlength=3) / 4000
    assert share[0] == 0
    assert abs(float(share[2]) - 0.75) < 0.04


def test_colors_and_patterns_are_in_range():
    cloth = _cloth_colors(500, rng())
    assert cloth.shape == (500, 3)
    assert cloth.min() >= 0
    assert cloth.max() <= 1
    age, dark = torch.full((800,), 0.98), torch.zeros(800, dtype=torch.bool)
    old, young = _hair_colors(age, dark, rng()), _hair_colors(age * 0.6, dark, rng())
    gray = [float(((c.amax(1) - c.amin(1)) < 0.06).float().mean() * 1.0) for c in (old, young)]
    assert gray[0] > gray[1]
    kind, param = _patterns(600, rng(), probability=0.5)
    assert 0.4 < float((kind != Pattern.NONE).float().mean()) < 0.6
    assert (param[:, 0] > 0).all()


def test_materials_fit_the_pack(pack: AssetPack):
    people = traits(60, 1.0, 0.8)
    outfit = choose_outfit(pack, people, torch.ones(60, dtype=torch.bool), rng(4))
    materials = sample_materials(pack, outfit.pieces, people, rng(4))
    assert materials.texture.shape == (60, len(SLOTS) * MATERIALS_PER_SLOT)
    assert int(materials.texture.max()) < len(pack.textures)
    assert int(materials.texture.min()) >= -1
    assert materials.tint.shape == materials.tint2.shape == (60, len(SLOTS) * MATERIALS_PER_SLOT, 3)
    assert materials.tint.min() >= 0
    skin = materials.texture[:, SLOT["body"] * MATERIALS_PER_SLOT]
    assert set(skin.tolist()) <= set(pack.skins[:, 0].tolist())
    assert torch.equal(materials.tint[:, 0], materials.tint[:, 1])  # face and body have one skin
    assert not materials.cutout.any()


def test_skin_matches_gender(pack: AssetPack):
    people = traits(400, 0.0, 0.8)
    pieces = wearing(pack).pieces.expand(400, -1)
    skin_traits = pack.skin_traits.clone()
    skins = torch.stack([torch.arange(len(skin_traits)), torch.arange(len(skin_traits))], 1)
    marked = replace(pack, skins=skins)
    index = sample_materials(marked, pieces, people, rng()).texture[:, 0]
    assert (skin_traits[index, 0] == 0).float().mean() > 0.9


def test_trunks_are_for_men(pack: AssetPack):
    assert pack.wardrobe.suits[pack.wardrobe.names.index("trunks")] == MEN
