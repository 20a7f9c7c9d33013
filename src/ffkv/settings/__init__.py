"""Settings: what can be set, files that set it, and what is wrong with them."""

from ffkv.settings.comparison import Comparison as Comparison
from ffkv.settings.models import EMBEDDED as EMBEDDED
from ffkv.settings.models import Activations as Activations
from ffkv.settings.models import Composition as Composition
from ffkv.settings.models import Corpus as Corpus
from ffkv.settings.models import Embedded as Embedded
from ffkv.settings.models import Intervention as Intervention
from ffkv.settings.models import Keys as Keys
from ffkv.settings.models import Model as Model
from ffkv.settings.models import Prefixes as Prefixes
from ffkv.settings.models import Refinement as Refinement
from ffkv.settings.models import Report as Report
from ffkv.settings.models import Settings as Settings
from ffkv.settings.models import Triggers as Triggers
from ffkv.settings.models import Values as Values
from ffkv.settings.models import corpus_sources as corpus_sources
from ffkv.settings.models import intervenes as intervenes
from ffkv.settings.models import measures_precision as measures_precision
from ffkv.settings.section import LARGEST as LARGEST
from ffkv.settings.section import Section as Section
from ffkv.settings.section import section as section
