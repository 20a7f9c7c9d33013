"""Settings: what can be set, files that set it, and what is wrong with them."""

from ffkv.settings.analyses import Activations as Activations
from ffkv.settings.analyses import Annotation as Annotation
from ffkv.settings.analyses import Composition as Composition
from ffkv.settings.analyses import Intervention as Intervention
from ffkv.settings.analyses import Keys as Keys
from ffkv.settings.analyses import Prefixes as Prefixes
from ffkv.settings.analyses import Refinement as Refinement
from ffkv.settings.analyses import Report as Report
from ffkv.settings.analyses import Triggers as Triggers
from ffkv.settings.analyses import Values as Values
from ffkv.settings.comparison import Comparison as Comparison
from ffkv.settings.inputs import EMBEDDED as EMBEDDED
from ffkv.settings.inputs import Corpus as Corpus
from ffkv.settings.inputs import Embedded as Embedded
from ffkv.settings.inputs import Model as Model
from ffkv.settings.inputs import corpus_sources as corpus_sources
from ffkv.settings.models import Settings as Settings
from ffkv.settings.models import intervenes as intervenes
from ffkv.settings.models import measures_precision as measures_precision
from ffkv.settings.section import LARGEST as LARGEST
from ffkv.settings.section import Section as Section
from ffkv.settings.section import section as section
