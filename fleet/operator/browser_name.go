package operator

import "strings"

// Products that a User-Agent names, the more specific first: nearly all of them also claim to
// be Chrome or Safari.
var (
	browserNames = [][2]string{{"Edg/", "Edge"}, {"EdgA/", "Edge"}, {"OPR/", "Opera"}, {"MicroMessenger/", "WeChat"},
		{"SamsungBrowser/", "Samsung Internet"}, {"Firefox/", "Firefox"}, {"FxiOS/", "Firefox"}, {"CriOS/", "Chrome"},
		{"Chromium/", "Chromium"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}, {"curl/", "curl"}}
	systemNames = [][2]string{{"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Android", "Android"}, {"Windows", "Windows"},
		{"CrOS", "ChromeOS"}, {"Mac OS X", "macOS"}, {"Linux", "Linux"}}
)

// BrowserName returns a short name for a User-Agent, such as "Firefox · Linux"; "" if it
// recognises nothing.
func BrowserName(agent string) string {
	name := func(of [][2]string) string {
		for _, n := range of {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	browser, system := name(browserNames), name(systemNames)
	if browser == "" || system == "" {
		return browser + system
	}
	return browser + " · " + system
}
