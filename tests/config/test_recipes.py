from pathlib import Path

import pytest

from incseg.config import flat_settings, from_yaml, load_recipe, published_images, recipe_names, to_yaml
from incseg.errors import InputError


def test_the_defaults_are_the_papers_recipe_for_voc() -> None:
    config = load_recipe("voc/15-5/overlapped")
    network = config.model
    assert (network.encoder, network.decoder, network.output_stride) == ("resnet101", "deeplabv3-mib", 16)
    assert (config.optim.epochs, config.optim.batch_size, config.data.crop_size) == (30, 24, 512)
    assert (config.optim.learning_rate, config.optim.incremental_learning_rate) == (0.01, 0.001)
    assert (config.optim.momentum, config.optim.weight_decay, config.optim.power) == (0.9, 1e-4, 0.9)


def test_every_published_recipe_loads() -> None:
    for name in recipe_names():
        config = load_recipe(name)
        if name.count("/") == 2:
            in_order_b = "-b/" in name
            assert config.protocol == name.replace("-b/", "/")
            assert config.data.class_order == (("b",) if in_order_b else None)


def test_every_setting_of_the_paper_has_a_recipe() -> None:
    voc = {f"voc/{task}/{s}" for task in ("19-1", "15-5", "15-1", "10-10", "10-1") for s in ("disjoint", "overlapped")}
    tasks = ("100-50", "100-10", "50-50", "100-50-b", "100-10-b", "50-50-b")
    ade = {f"ade20k/{task}/{s}" for task in tasks for s in ("disjoint", "overlapped")}
    city = {"cityscapes/13-6/overlapped", "cityscapes/13-1/overlapped"}
    offline = {f"{dataset}/offline/overlapped" for dataset in ("voc", "ade20k", "cityscapes")}
    assert {"demo"} | voc | ade | city | offline <= set(recipe_names())


def test_the_papers_recipe_for_ade20k_and_cityscapes() -> None:
    ade = load_recipe("ade20k/100-50-b/disjoint", {"method": "plop+ucd"})
    assert (ade.optim.epochs, ade.optim.learning_rate, ade.optim.incremental_learning_rate) == (60, 0.01, 0.01)
    assert ade.settings == {"plop": {"thresholds": "released"}}  # the paper has one weight for all datasets
    assert (ade.data.future, ade.data.background) == ("background", "score")
    city = load_recipe("cityscapes/13-1/overlapped", {"method": "mib"})
    assert (city.optim.epochs, city.optim.learning_rate, city.optim.incremental_learning_rate) == (60, 0.01, 0.001)
    assert city.settings == {}
    assert (city.data.void, city.data.scored_void, city.data.future) == ("background", "background", "ignore")


@pytest.mark.parametrize("dataset", ["voc", "ade20k", "cityscapes", "shapes"])
def test_published_recipes_have_the_papers_network_and_plops_released_thresholds(dataset: str) -> None:
    task = {"voc": "15-1", "ade20k": "100-50", "cityscapes": "13-6", "shapes": "4-2"}[dataset]
    config = load_recipe(f"{dataset}/{task}/overlapped", {"method": "plop+ucd"})
    published = dataset != "shapes"
    assert (config.model.decoder == "deeplabv3-mib") == published
    assert (config.settings.get("plop", {}).get("thresholds") == "released") == published


def test_layers_later_ones_win(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("protocol: shapes/4-2/disjoint\noptim: {epochs: 3}\nucd: {temperature: 0.5}\n")
    config = load_recipe(str(mine), {"optim": {"batch_size": 6}})
    assert config.protocol == "shapes/4-2/disjoint"
    assert config.model.encoder == "test_resnet"  # from recipes/shapes/defaults.yaml
    assert (config.optim.epochs, config.optim.batch_size) == (3, 6)
    assert config.settings == {"ucd": {"temperature": 0.5}}


def test_options_of_a_recipes_decoder_are_not_those_of_another() -> None:
    def options(**model: object) -> dict[str, object]:
        return load_recipe("shapes/4-2/overlapped", {"model": model}).model.decoder_options

    assert options() == options(decoder="deeplabv3plus") == {"decoder_channels": 64}
    assert options(decoder="deeplabv3-mib") == {}
    assert options(decoder="deeplabv3-mib", decoder_options={"channels": 8}) == {"channels": 8}
    assert options(decoder_options={"decoder_channels": 8}) == {"decoder_channels": 8}
    assert options(decoder="DeepLabV3Plus") == {"decoder_channels": 64}


def test_options_in_a_file_stay_when_the_decoder_they_are_for_is_named_on_top(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("protocol: shapes/4-2/overlapped\nmodel: {decoder_options: {decoder_channels: 8}}")
    model = load_recipe(str(file), {"model": {"decoder": "deeplabv3plus"}}).model
    assert (model.decoder, model.decoder_options) == ("deeplabv3plus", {"decoder_channels": 8})


def test_published_recipes_score_as_the_paper_and_others_whole_images() -> None:
    assert {load_recipe(name).data.scoring for name in recipe_names() if name.count("/") == 2} == {"paper"}
    assert {load_recipe(name).data.scoring for name in ("demo", "voc/small", "folder/2-2")} == {"full"}


@pytest.mark.parametrize(
    ("recipe", "method", "preset", "setting", "plain", "changed"),
    [
        ("voc/15-1/overlapped", "mib+ucd", "kd-100", "settings.mib.kd_weight", None, 100.0),
        ("cityscapes/13-6/overlapped", "ft", "scripts", "optim.epochs", 60, 30),
        ("ade20k/100-10-b/disjoint", "mib", "scripts", "optim.incremental_learning_rate", 0.01, 0.001),
        ("ade20k/100-50/disjoint", "plop+ucd", "plop-scripts", "settings.plop.pod_weight", None, 0.001),
        ("voc/19-1/disjoint", "mib+sdr", "sdr-kick-start", "settings.sdr.sparsity", None, 0.0001),
        ("voc/19-1/disjoint", "sdr", "sdr-released", "settings.sdr.kd_weight", None, 100.0),
    ],
)
def test_a_preset_is_used_where_it_is_asked_for(
    recipe: str, method: str, preset: str, setting: str, plain: object, changed: object, tmp_path: Path
) -> None:
    assert flat_settings(load_recipe(recipe, {"method": method})).get(setting) == plain
    assert flat_settings(load_recipe(recipe, {"method": method, "preset": [preset]}))[setting] == changed
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"protocol: {load_recipe(recipe).protocol}\nmethod: {method}\npreset: {preset}\n")
    assert flat_settings(load_recipe(str(mine)))[setting] == changed


def test_presets_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"there is no preset 'script' here: use .*scripts.* Did you mean 'scripts'"):
        load_recipe("ade20k/100-50/disjoint", {"preset": "script"})
    with pytest.raises(InputError, match="the preset 'kd-100' has no setting for the method 'ft'"):
        load_recipe("voc/15-1/disjoint", {"preset": "kd-100", "method": "ft"})


@pytest.mark.parametrize(
    ("recipe", "rates"),
    [
        ("voc/15-1/overlapped", (0.02, 0.0005)),
        ("voc/10-1/disjoint", (0.02, 0.0005)),
        ("voc/15-5/overlapped", (0.02, 0.02)),
        ("voc/19-1/disjoint", (0.02, 0.005)),
        ("ade20k/50-50/overlapped", (0.02, 0.1)),
    ],
)
def test_dft_has_its_own_learning_rates(recipe: str, rates: tuple[float, float]) -> None:
    dft, mib = (load_recipe(recipe, {"method": method}).optim for method in ("dft", "mib"))
    assert (dft.learning_rate, dft.incremental_learning_rate) == rates
    assert (mib.learning_rate, mib.incremental_learning_rate) == (0.01, 0.01 if recipe.startswith("ade") else 0.001)


def test_a_method_brings_its_network_and_rates_below_all_recipes() -> None:
    for method in ("dkd", "ucd+dkd", "dkd+ewf"):
        config = load_recipe("shapes/4-2/overlapped", {"method": method})
        assert (config.model.head, config.optim.freeze_norm, config.optim.encoder_rate) == ("sigmoid", True, 0.1)
        assert config.optim.incremental_learning_rate == 0.03  # the dataset's
    plain = load_recipe("shapes/4-2/overlapped", {"method": "dkd", "model": {"head": "softmax"}})
    assert (plain.model.head, plain.optim.encoder_rate) == ("softmax", 0.1)
    assert load_recipe("shapes/4-2/overlapped", {"method": "ucd"}).model.head == "softmax"
    assert load_recipe("voc/15-1/overlapped", {"method": "dkd"}).optim.epochs == 60
    assert load_recipe("voc/small", {"method": "dkd"}).optim.epochs == 4  # a recipe that says so itself


def test_methods_that_contradict_each_other_are_refused_until_somebody_decides(tmp_path: Path) -> None:
    both = {"method": "dft+dkd"}
    refusal = (
        r"'dft' and 'dkd' come with different settings: optim.incremental_learning_rate is 0.1 for 'dft' and 0.0025 "
        r"for 'dkd'; decide with --optim.incremental-learning-rate VALUE"
    )
    with pytest.raises(InputError, match=refusal):
        load_recipe("ade20k/100-50/overlapped", both)
    decided = {"optim": {"incremental_learning_rate": 0.5}}
    assert load_recipe("ade20k/100-50/overlapped", {**both, **decided}).optim.incremental_learning_rate == 0.5
    assert load_recipe("ade20k/100-50/overlapped", {**both, "preset": "scripts"}).optim.epochs == 100
    mine = tmp_path / "mine.yaml"
    mine.write_text("protocol: ade20k/100-50/overlapped\nmethod: dft+dkd\noptim: {incremental_learning_rate: 0.5}\n")
    assert load_recipe(str(mine)).optim.incremental_learning_rate == 0.5


def test_published_numbers_of_images() -> None:
    assert published_images("voc/15-1/disjoint", None) == [8437, 378, 299, 420, 500, 548]
    assert published_images("ade20k/100-50/disjoint", ("a",)) == [13452, 6744]
    assert published_images("ade20k/100-50/disjoint", ("b",)) == [10375, 9821]
    assert published_images("ade20k/100-50/disjoint", ("c",)) is None
    assert published_images("voc/12-8/disjoint", None) is None


def test_spaces_in_a_sum_make_no_other_method() -> None:
    spaced, plain = (load_recipe("voc/15-1/overlapped", {"method": text}) for text in ("mib + ucd", "mib+ucd"))
    assert spaced == plain


def test_a_configuration_reads_back_as_written(tmp_path: Path) -> None:
    config = load_recipe("shapes/4-2/overlapped", {"ucd": {"temperature": 0.1}, "data": {"class_order": ["moon"]}})
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert from_yaml(path) == config


def test_a_configuration_that_was_spoilt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("protocol: shapes/4-2\noptim: {epochs: x}\n")
    with pytest.raises(InputError, match=r"optim.epochs cannot be 'x': .* \(in .*config\.yaml\)"):
        from_yaml(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optim": {"epoch": 3}}, "no setting 'optim.epoch'. Did you mean 'optim.epochs'"),
        ({"optm": {"epochs": 3}}, "'optm' is neither .* Did you mean 'optim'"),
        ({"optim": {"epochs": "many"}}, "optim.epochs cannot be 'many'"),
        ({"optim": {"epochs": 0}}, "optim.epochs cannot be 0"),
        ({"optim": {"learning_rate": float("inf")}}, "optim.learning_rate cannot be inf"),
        ({"data": {"crop_size": 100}}, "multiple of 32"),
        ({"seeed": 3}, "no setting 'seeed'. Did you mean 'seed'"),
        ({"method": "mib", "ucd": {"temperature": 1}}, "'ucd' is neither"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("shapes/4-2/overlapped", overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("optim: {epochs: 3}", "names no protocol"), ("- a\n- b", "must hold settings"), ("a: [", "not valid YAML"),
     ("protocol: shapes/4-2\n5: 3", "must hold settings by name"), ("ä: 1", "not UTF-8 text")],
)  # fmt: skip
def test_recipe_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        load_recipe(str(path))


def test_a_missing_recipe_file_is_named() -> None:
    with pytest.raises(InputError, match=r"there is no file nowhere\.yaml"):
        load_recipe("nowhere.yaml")


def test_a_folder_named_like_a_recipe_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match=r"folder\.yaml is a folder"):
        load_recipe(str(tmp_path / "folder.yaml"))
