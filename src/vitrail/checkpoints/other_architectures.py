"""Architectures of timm and transformers that are no plain Vision Transformers, each with the reason.

A plain one cuts a picture into patches once, keeps their number and width through blocks that are all alike, and lets
every patch attend to every other.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

OTHER_ARCHITECTURES = {  # why it is none: patterns of timm's names of architectures and transformers' model types
    "Hiera pools tokens between its stages": "hiera* sam2_hiera* hieradet*",
    "SAM attends within windows, by relative positions": "sam sam_* samvit* sam2* sam3*",
    "it attends to fewer keys and values than there are tokens, in stages of fewer and fewer tokens": (
        "pvt* segformer glpn mit_* twins_pcpvt*"
    ),
    "Swin attends within shifted windows, in stages whose tokens are merged": "swin* donut-swin maskformer-swin",
    "it attends within windows or neighbourhoods, in stages whose tokens are merged": (
        "maxvit* maxxvit* rmlp_maxvit* test_maxvit gcvit* nest* twins* tiny_vit* davit* florence* dinat nat"
    ),
    "MViT pools queries, keys and values, in stages that grow wider": "mvit*",
    "CaiT mixes attention over its heads, and its class token joins after the blocks": "cait*",
    "XCiT attends over channels instead of patches": "xcit*",
    "CoaT attends with convolutions, over patches of several sizes": "coat_*",
    "LeViT shrinks its tokens between stages, with convolutions and batch norms": "levit*",
    "ConViT mixes attention with positions by a gate": "convit*",
    "CrossViT has two branches, for patches of two sizes": "crossvit*",
    "PiT pools its tokens between stages": "pit_*",
    "TNT has a transformer inside every patch": "tnt_*",
    "VOLO begins with outlook attention, over neighbours": "volo*",
    "FocalNet modulates by surroundings of growing size instead of attention": "focalnet*",
    "it mixes tokens without attention": (
        "mixer_* gmixer* gmlp* resmlp* sequencer* poolformer* convformer* identityformer* randformer* mambaout* "
        "test_mambaout efficientvim*"
    ),
    "its patches come out of a convolutional network (a hybrid)": (
        "vit_*_r[0-9]*_s[0-9]* vit_*_r_s[0-9]* vit_*_resnet* vit_base_mci_* vitamin* visformer* vit-hybrid"
    ),
    "it is a network of convolutions with attention in some stages": (
        "botnet* *_botnext* *bat_resnext* *halonet* *halonext* halo2botnet* haloregnet* lambda_resnet* lamhalobotnet* "
        "sebotnet* caformer* coatnet* coatnext* rmlp_coatnet* test_coatnet edgenext* efficientformer* efficientvit* "
        "fastvit* iformer* lowformer* mobilevit* nextvit* shvit* swiftformer* cpubone* csatv2* cvt mobilenetv4_hybrid* "
        "mobilenetv5*"
    ),
    "it is a convolutional network": (
        "align* bit convmixer* convnext* cs3* cspdarknet* cspnet* cspnext* cspresne* darknet* densenet* "
        "dinov3_convnext* dla* dm_nfnet* dpn* eca_nfnet* eca_resn* eca_vov* ecaresne* efficientnet* ese_vov* "
        "fasternet* fbnet* gc_* gcres* gernet* ghostnet* hardcorenas* hgnet* hrnet* inception* lcnet* "
        "legacy_* mixnet* mnasnet* mobilenet* mobileone* nasnet* nf_* nfnet* pnasnet* pp_lcnet* rdnet* "
        "regnet* repghost* repvgg* repvit* res2ne* resnest* resnet* resnext* rexnet* sedarknet* selecsls* "
        "semnasnet* senet* seresne* skresne* spnasnet* starnet* test_byobnet test_convnext* "
        "test_efficientnet* test_nfnet* test_resnet textnet tf_efficientnet* tf_mixnet* tf_mobilenet* "
        "tinynet* tresnet* vgg* vovnet* wide_resnet* xception*"
    ),
    "it is the picture encoder of a language model, with positions and norms of its own": (
        "gemma*_vit* qwen*_vit* deepseek_vit* llama4* mllama* pixtral* cohere2_vision kosmos* idefics* smolvlm* "
        "shieldgemma2 instructblip* blip_2*"
    ),
    "it finds objects: a detector on top of a network for pictures": "*detr table-transformer owlvit* owlv2* deta",
    "it makes maps of depth or of segments out of a ViT": "dpt depth_* clipseg* zoedepth",
    "it attends within windows, by relative positions": "vitdet",
    "it groups its tokens between stages": "groupvit*",
    "Pixio has several class tokens, each with its own position": "pixio",
    "it reads videos": "timesformer videomae* vivit videoprism* xclip*",
    "it reads pictures together with text": "vilt* flava* blip blip_*",
    "it predicts a picture colour by colour": "imagegpt",
    "it reads pictures through a small set of learned queries": "perceiver*",
}
"""The first reason with a fitting pattern is given, so that narrower patterns come first."""


def explain_architecture(name: str) -> str:
    """Why an architecture of this name is no plain Vision Transformer; empty if the table does not know it."""
    for reason, patterns in OTHER_ARCHITECTURES.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return reason
    return ""
