package i18n

import (
	"testing"
	"time"

	"fleetd/fleet"
)

// Pages use their own names for roles and for the fields of a plan; programs get the names for
// programs.
func TestTerms(t *testing.T) {
	for field, key := range fieldLabels {
		if !Has(key) {
			t.Errorf("the field %s has the label %s, which is no message", field, key)
		}
	}
	inRange := func(field string) *fleet.Error {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_x.range", "field", field, "value", 900, "least", 0, "most", 100)
	}
	tests := []struct {
		e              *fleet.Error
		detail, en, zh string
	}{
		{fleet.Refuse(fleet.ErrForbidden, "forbidden", "act", fleet.Because("act.retire_device"), "need", "operator",
			"actor", "vera", "role", "viewer"), "retiring a device needs the role operator; vera has viewer",
			"Retiring a device needs the role operator; vera has viewer.", "退役设备需要操作员角色，vera 的角色是查看者。"},
		{fleet.Refuse(fleet.ErrForbidden, "forbidden", "act", fleet.Because("act.retire_device"), "need", "operator",
			"actor", "王芳", "role", "owner"), "retiring a device needs the role operator; 王芳 has owner",
			"Retiring a device needs the role operator; 王芳 has owner.", "退役设备需要操作员角色，王芳的角色是 owner。"},
		{inRange("max_in_flight"), "max_in_flight is 900; it must be from 0 to 100",
			"“In flight at once” is 900; it must be from 0 to 100.", "“同时升级”为 900，须在 0 到 100 之间。"},
		{inRange("waves[1].percent"), "waves[1].percent is 900; it must be from 0 to 100",
			"Wave 2: “Size” is 900; it must be from 0 to 100.", "第 2 批的“规模”为 900，须在 0 到 100 之间。"},
		{inRange("health_checks[0].assert[2].path"), "health_checks[0].assert[2].path is 900; it must be from 0 to 100",
			"Health check 1: assertion 3: “JSON path” is 900; it must be from 0 to 100.",
			"第 1 项健康检查的第 3 个断言的“JSON 路径”为 900，须在 0 到 100 之间。"},
		{inRange("forbid_removed[4]"), "forbid_removed[4] is 900; it must be from 0 to 100",
			"Tool 5 of the tools that must remain is 900; it must be from 0 to 100.",
			"必须保留的第 5 个工具为 900，须在 0 到 100 之间。"},
		{inRange("of_a_newer[version"), "of_a_newer[version is 900; it must be from 0 to 100",
			"of_a_newer[version is 900; it must be from 0 to 100.", "of_a_newer[version 为 900，须在 0 到 100 之间。"},
	}
	for _, tt := range tests {
		if got := ErrorDetail(tt.e); got != tt.detail {
			t.Errorf("for programs: %q, want %q", got, tt.detail)
		}
		if got := Error(English, time.UTC, tt.e); got != tt.en {
			t.Errorf("in English: %q, want %q", got, tt.en)
		}
		if got := Error(Chinese, time.UTC, tt.e); got != tt.zh {
			t.Errorf("in Chinese: %q, want %q", got, tt.zh)
		}
	}
}

// A space separates Chinese characters from a Latin word or number, also if only the value decides
// which it is.
func TestChineseSpacing(t *testing.T) {
	catalogue["test.spacing"] = message{English: {"x"}, Chinese: {"参数{name}须为 {wanted}，共{n}项"}}
	t.Cleanup(func() { delete(catalogue, "test.spacing") })
	tests := []struct{ name, wanted, want string }{
		{"volume", "0 到 100 的整数", "参数 volume 须为 0 到 100 的整数，共 3 项"},
		{"音量", "整数", "参数音量须为整数，共 3 项"},
		{Mark("音量"), Mark("a b"), "参数" + Mark("音量") + "须为 " + Mark("a b") + "，共 3 项"},
		{Mark("v"), "“整数”", "参数 " + Mark("v") + " 须为“整数”，共 3 项"},
		{"{n}", "", "参数{n}须为，共 3 项"},
	}
	for _, tt := range tests {
		if got := Text(Chinese, "test.spacing", "name", tt.name, "wanted", tt.wanted, "n", 3); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.name, tt.wanted, got, tt.want)
		}
	}
	e := fleet.NewCallError("invalid_arguments.missing", "argument", "volume", "wanted",
		fleet.Because("wanted.range", "type", fleet.Because("type.integer"), "least", 0, "most", 100))
	if got, _ := CallError(Chinese, time.UTC, e); got != "缺少 volume：须为 0 到 100 的整数。" {
		t.Errorf("%q", got)
	}
}
