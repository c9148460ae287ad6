"""Items of TRIPOD+AI, CLAIM 2024 and EU AI Act Annex IV, in our own words, and where a dossier answers each of them.

Sources, for the numbers: Collins et al. 2024, "TRIPOD+AI statement", BMJ 385:e078378; Tejani et al. 2024, "Checklist
for Artificial Intelligence in Medical Imaging (CLAIM): 2024 Update", Radiology: Artificial Intelligence 6(4):e240300;
Regulation (EU) 2024/1689, Annex IV.
"""

from __future__ import annotations

from typing import NamedTuple

MEDICAL = "medical"
FIELD = "field"
"""The question whose answer says which others are asked, and in which words."""
FIELDS = (MEDICAL, "industrial", "research")


class Question(NamedTuple):
    """What no run can know and its authors are asked for."""

    name: str
    """In `dossier.toml`."""
    topic: str
    text: str


class ChecklistItem(NamedTuple):
    """One item of a checklist."""

    number: str
    topic: str
    sections: tuple[str, ...]
    """Ids of the sections of the page that answer it; after a dot what it has to hold for that."""
    questions: tuple[str, ...]
    """Names of the `QUESTIONS` that belong to it."""


def _read_rows(table: str) -> list[list[str]]:
    """The cells of a table, with | between them."""
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def _read_items(table: str) -> tuple[ChecklistItem, ...]:
    """Items from rows of number, topic, sections and questions."""
    return tuple(
        ChecklistItem(row[0], row[1], tuple(row[2].split()), tuple(row[3].split())) for row in _read_rows(table)
    )


QUESTIONS = tuple(Question(*row) for row in _read_rows("""
field            | Field                        | medical, industrial or research; it chooses the questions.
provider         | Provider and version         | Who answers for the model? Its name and version?
use              | Intended use                 | What is it for, on what, when, in whose hands; what follows?
not_for          | Not meant for                | For whom, for which pictures and for which use is it not meant?
in_use           | Put to use                   | Who put the decision that answers to use, when, and who may change it?
background       | Background                   | How is it done today, and how well?
abstract         | Abstract                     | Design, data, results and conclusion in one paragraph.
aims             | Aims                         | What was to be found out, stated before the figures were seen?
design           | Design                       | Collected for this study or before it; to make or compare what?
sources          | Sources                      | Which places, dates and devices; how like the intended use?
eligibility      | Who or what is in            | Which pictures were taken in or left out, by which rules, how many?
acquisition      | How pictures were taken      | Which devices and settings; what must a picture fulfil?
deidentification | De-identification            | Do pictures or names show persons; how was that removed?
ethics           | Approval                     | Who allowed the use of the pictures?
reference        | True answers                 | How is the true answer known, and why in that way?
annotators       | Annotators                   | Who labelled, how trained, with which tools, knowing what?
agreement        | Agreement                    | How far do they differ, also from themselves; who settled it?
size             | Size                         | Why so many pictures, and how was that counted?
characteristics  | What is in each partition    | Make, batch, device and severity, and how partitions differ.
fairness         | Fairness                     | Which groups of pictures matter, and what was done for them?
metrics          | Choice of measures           | Why do these measures and thresholds fit the intended use?
failures         | What failures have in common | Look at the pictures that were answered wrongly, and say it.
limitations      | Further limitations          | Which biases of selection, labels and place remain?
implications     | What follows                 | What do the results mean in use; what comes next?
oversight        | Human oversight              | Who sees the answers, how trained, who may overrule them?
integration      | Integration                  | With which hardware, software, interface and instructions?
risks            | Risks                        | Which harms can be foreseen, and how are they managed?
planned          | Planned changes              | Which changes are foreseen, and who decides on them?
security         | Security                     | Who can reach the model and its files, and how is that guarded?
norms            | Norms and conformity         | Which standards apply; where is the declaration of conformity?
duties           | Duties of monitoring         | Who runs the watch, how often, and what is done after an alarm?
registration     | Registration and protocol    | Where can the protocol be read?
availability     | Availability                 | Who can have code, model and data, and under which terms?
funding          | Funding and interests        | Who paid, with which say; which interests are declared?
involvement      | Involvement                  | Were those who will work with it involved, and in what?
"""))  # fmt: skip
MEDICAL_TEXTS = dict(_read_rows("""
use              | What is it for, on which patients, when, in whose hands; what follows?
background       | How is it done today; is anybody served worse than others?
sources          | Which places, dates and populations; how like the intended use?
eligibility      | Who was in or out, by which criteria, with which treatments, how many?
deidentification | How were names and burnt-in letters removed; who checked?
ethics           | Which committee approved it, and who consented to what?
reference        | What is the reference standard, how is it found, and why that?
annotators       | Who annotated, how trained, with which tools, blind to the index test?
characteristics  | Age, sex and severity, and how partitions differ.
fairness         | Which groups of patients matter, and what was done for them?
implications     | What do the results mean for practice; what comes next?
registration     | Which registry and number, and where can the protocol be read?
involvement      | Were patients or the public involved, and in what?
"""))  # fmt: skip
"""The questions in clinical words, by their names."""
ONLY_IN = {
    "integration": ("medical", "industrial"),
    "norms": ("medical", "industrial"),
    "duties": ("medical", "industrial"),
    "registration": ("medical", "research"),
}
"""The fields that a question is asked in, where not in all."""
TRIPOD_AI = _read_items("""
1   | Title: which model, for whom, of what       | methods                                | use field
2   | Abstract                                    |                                        | abstract
3a  | Setting, and why a model                    |                                        | background
3b  | Whom it serves, when, in whose hands        |                                        | use not_for
3c  | Known inequalities                          |                                        | background
4   | Aims                                        |                                        | aims
5a  | Sources of training and test data           | pictures training elsewhere            | sources
5b  | Dates of the data                           |                                        | sources
6a  | Setting and centres                         |                                        | sources
6b  | Who was eligible                            | pictures                               | eligibility
6c  | Treatments                                  |                                        | eligibility
7   | Preparation and checks of the data          | pictures methods                       |
8a  | What is predicted, and how it is known      | pictures                               | reference
8b  | Who assessed it                             |                                        | annotators
8c  | Blinding of assessment                      |                                        | annotators
9a  | Which inputs were chosen                    | methods                                |
9b  | Definition of the inputs                    | pictures methods                       | acquisition
9c  | Who assessed the inputs                     |                                        | acquisition
10  | Size of the study                           | pictures training                      | size
11  | Missing data                                | pictures                               |
12a | How the data were divided                   | pictures training                      |
12b | How inputs enter the model                  | methods                                |
12c | Type of model and how it was built          | methods learning plan                  |
12d | Differences between clusters                | subgroups.columns                      |
12e | Measures and plots of performance           | methods figures trust curves           | metrics
12f | Updates after evaluation                    | decisions banks                        | in_use
12g | How predictions are computed                | repeat                                 |
13  | Imbalance of classes                        | pictures plan trust                    |
14  | Fairness                                    | subgroups.columns                      | fairness
15  | Output and thresholds                       | methods trust decisions                | metrics in_use
16  | Training against test data                  | pictures training elsewhere            | characteristics
17  | Approval and consent                        |                                        | ethics
18a | Funding                                     |                                        | funding
18b | Interests                                   |                                        | funding
18c | Protocol                                    |                                        | registration
18d | Registration                                |                                        | registration
18e | Data sharing                                |                                        | availability
18f | Code sharing                                | repeat                                 | availability
19  | Involvement of patients and public          |                                        | involvement
20a | Flow, and cases with the outcome            | pictures                               | eligibility
20b | Characteristics                             | pictures subgroups                     | characteristics
20c | Test data beside training data              | pictures                               | characteristics
21  | Numbers in each analysis                    | pictures training                      |
22  | The model, for use by others                | repeat verification                    | availability
23a | Performance with intervals, and by subgroup | figures classes curves subgroups.columns cases |
23b | Performance by cluster                      | subgroups.columns elsewhere            |
24  | Results of updates                          | decisions.updated banks                |
25  | Interpretation                              |                                        | implications fairness
26  | Limitations                                 | limits missing                         | limitations
27a | Poor or missing input                       | trust limits                           | oversight
27b | What users do, and with which expertise     |                                        | oversight
27c | Next steps                                  |                                        | implications
""")
CLAIM = _read_items("""
1  | Named as a study of AI, with its kind      | methods                            |
2  | Abstract                                   |                                    | abstract
3  | Background, use and role                   |                                    | background use not_for
4  | Aims                                       |                                    | aims
5  | Looking ahead or back                      |                                    | design
6  | Goal of the study                          |                                    | design
7  | Sources of data                            | pictures                           | sources
8  | Who was in, who was not                    | pictures                           | eligibility
9  | Preparation of pictures                    | methods                            |
10 | Parts of the data that were taken          | pictures                           |
11 | De-identification                          |                                    | deidentification
12 | Missing data                               | pictures                           |
13 | How pictures were acquired                 | pictures                           | acquisition
14 | Reference standard                         |                                    | reference
15 | Why that one                               |                                    | reference
16 | Who annotated                              |                                    | annotators
17 | Annotation of the test data                | suspects                           | annotators
18 | Agreement of annotators                    |                                    | agreement
19 | How partitions were made                   | pictures training                  |
20 | Level at which partitions are apart        | pictures                           |
21 | Size of the test data                      | training                           | size
22 | The model in full                          | methods plan                       |
23 | Software and versions                      | repeat                             |
24 | Initial parameters                         | methods                            |
25 | Training in detail                         | methods learning plan              |
26 | Choice of the final model                  | methods                            |
27 | Ensembles                                  | methods                            |
28 | Measures of performance                    | methods figures                    | metrics
29 | Uncertainty and significance               | methods subgroups                  |
30 | Robustness                                 | robustness shortcuts               |
31 | Explanations and their check               | maps.checked                       |
32 | Internal testing                           | figures training                   |
33 | External testing                           | elsewhere                          |
34 | Registration of a trial                    |                                    | registration
35 | Numbers in and out                         | pictures                           | eligibility
36 | Characteristics of each partition          | pictures subgroups                 | characteristics
37 | Performance on each partition and subgroup | figures training classes subgroups.columns |
38 | Diagnostic accuracy with precision         | curves classes trust cases         |
39 | Analysis of failures                       | errors mistakes rejects maps       | failures
40 | Limitations                                | limits missing                     | limitations
41 | What follows for practice                  |                                    | implications use
42 | Protocol and further detail                | plan                               | registration
43 | Availability                               | repeat verification                | availability
44 | Funding                                    |                                    | funding
""")
ANNEX_IV = _read_items("""
1(a) | Purpose, provider, earlier versions           | decisions banks verification  | provider use not_for in_use
1(b) | Interplay with other systems                  |                                        | integration
1(c) | Versions of software                          | repeat                                 |
1(d) | Forms in which it is given out                |                                        | integration
1(e) | Hardware to run on                            | repeat                                 | integration
1(f) | Pictures of the product                       |                                        | integration
1(g) | User interface                                |                                        | integration
1(h) | Instructions for use                          |                                        | integration
2(a) | Steps of development, foreign models          | methods plan                           |
2(b) | Logic, choices and their reasons              | methods plan                           | use
2(c) | Architecture and computing resources          | methods training repeat                |
2(d) | Data: origin, choice, labels, cleaning        | pictures suspects                      | sources annotators
2(e) | Human oversight, interpretation               | maps trust                             | oversight
2(f) | Changes that are foreseen                     | decisions                              | planned
2(g) | Tests, measures, test logs                    | figures curves classes subgroups verification | metrics
2(h) | Security                                      |                                        | security
3    | Abilities, limits, accuracy for groups, input | figures subgroups limits missing       | oversight risks not_for
4    | Why these measures                            | methods                                | metrics
5    | Management of risks                           |                                        | risks
6    | Changes over its life                         | decisions banks                        | planned in_use
7    | Standards that apply                          |                                        | norms
8    | Declaration of conformity                     |                                        | norms
9    | Monitoring in use                             | watch                                  | duties
""")  # fmt: skip
CHECKLISTS = {"TRIPOD+AI": TRIPOD_AI, "CLAIM 2024": CLAIM, "EU AI Act, Annex IV": ANNEX_IV}


def list_questions(field: str) -> list[Question]:
    """The questions to the authors, in the words of their field; all of them, in plain words, while it is empty."""
    asked = [one for one in QUESTIONS if not field or field in ONLY_IN.get(one.name, FIELDS)]
    texts = MEDICAL_TEXTS if field == MEDICAL else {}
    return [one._replace(text=texts.get(one.name, one.text)) for one in asked]
