package mcp

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// protocolVersion is the revision that stock firmware answers with, whatever
// revision the client requests.
const protocolVersion = "2024-11-05"

// initialized notifies the device that the client is ready. It has no answer.
const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// The methods of stock firmware, and ping, which it answers with an error.
const (
	methodInitialize = "initialize"
	methodPing       = "ping"
	methodToolsList  = "tools/list"
	methodToolsCall  = "tools/call"
)

// appendHead appends a request up to its parameters. The functions here and
// below build every request by appending text, not from struct tags: the
// firmware silently drops a request if its id, version or params have another
// type.
func appendHead(dst []byte, id int32, method string) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = strconv.AppendInt(dst, int64(id), 10)
	dst = append(dst, `,"method":"`...)
	return append(append(dst, method...), '"')
}

func appendPing(dst []byte, id int32) []byte {
	return append(appendHead(dst, id, methodPing), '}')
}

func appendCall(dst []byte, id int32, name string, arguments json.RawMessage) []byte {
	dst = appendHead(dst, id, methodToolsCall)
	dst = appendString(append(dst, `,"params":{"name":`...), name)
	dst = append(dst, `,"arguments":`...)
	return append(append(dst, arguments...), "}}"...)
}

// appendList appends a tools/list request. withUserTools has to be a bool, and
// on every page.
func appendList(dst []byte, id int32, cursor string, withUserTools bool) []byte {
	dst = appendHead(dst, id, methodToolsList)
	if cursor == "" && !withUserTools {
		return append(dst, '}')
	}
	dst = append(dst, `,"params":{`...)
	if cursor != "" {
		dst = appendString(append(dst, `"cursor":`...), cursor)
	}
	if cursor != "" && withUserTools {
		dst = append(dst, ',')
	}
	if withUserTools {
		dst = append(dst, `"withUserTools":true`...)
	}
	return append(dst, "}}"...)
}

func appendInitialize(dst []byte, id int32, p InitializeParams) []byte {
	dst = appendHead(dst, id, methodInitialize)
	dst = appendString(append(dst, `,"params":{"protocolVersion":`...), cmp.Or(p.ProtocolVersion, protocolVersion))
	dst = append(dst, `,"capabilities":{`...)
	if p.VisionURL != "" {
		dst = appendString(append(dst, `"vision":{"url":`...), p.VisionURL)
		dst = appendString(append(dst, `,"token":`...), p.VisionToken)
		dst = append(dst, '}')
	}
	dst = appendString(append(dst, `},"clientInfo":{"name":`...), p.ClientName)
	dst = appendString(append(dst, `,"version":`...), p.ClientVersion)
	return append(dst, "}}}"...)
}
