"""`python -m vitruvian.training.synthetic.build_pack`."""

from vitruvian.training.synthetic.build_pack import main

main()
