"""`python -m recipes.build_people_assets`."""

from recipes.build_people_assets import main

main()
