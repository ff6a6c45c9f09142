"""All mutants."""

from mutant import Mutant
from mutants_centred import CENTRED
from mutants_databases import DATABASES
from mutants_images import IMAGES
from mutants_ledgers import LEDGERS
from mutants_losses import LOSSES
from mutants_privacy import PRIVACY
from mutants_public import PUBLIC
from mutants_rates import RATES
from mutants_searches import SEARCHES
from mutants_secret_part import SECRET_PART
from mutants_silence import SILENCE
from mutants_split import SPLIT
from mutants_studies import STUDIES
from mutants_training import TRAINING
from mutants_trials import TRIALS

MUTANTS: tuple[Mutant, ...] = (
    *PRIVACY,
    *LOSSES,
    *IMAGES,
    *LEDGERS,
    *DATABASES,
    *TRAINING,
    *CENTRED,
    *RATES,
    *TRIALS,
    *SPLIT,
    *SEARCHES,
    *SECRET_PART,
    *PUBLIC,
    *STUDIES,
    *SILENCE,
)
