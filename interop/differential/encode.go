package differential

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// types contains every built-in kind and the kinds of the API machinery itself.
var types = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

var proto = protobuf.NewSerializer(types, types)

// encodeBody encodes a step's text as its request body.
func encodeBody(text string, encoding Encoding) ([]byte, error) {
	switch encoding {
	case YAML:
		return yaml.JSONToYAML([]byte(text))
	case Protobuf:
		var kind metav1.TypeMeta
		if err := json.Unmarshal([]byte(text), &kind); err != nil {
			return nil, err
		}
		object, err := types.New(kind.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(text), object); err != nil {
			return nil, err
		}
		object.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind())
		var out bytes.Buffer
		err = proto.Encode(object, &out)
		return out.Bytes(), err
	default:
		return []byte(text), nil
	}
}

// decodeProtobuf converts an enveloped object to the value of its JSON.
func decodeProtobuf(body []byte) (any, error) {
	object, kind, err := proto.Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return decodeJSON(text)
}

// decodeJSON keeps numbers as written.
func decodeJSON(text []byte) (any, error) {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return value, nil
}

// protobufFrame splits the first watch event off data; nil while it is incomplete.
func protobufFrame(data []byte) (event any, rest []byte, err error) {
	if len(data) < 4 {
		return nil, data, nil
	}
	size := int(binary.BigEndian.Uint32(data))
	if len(data) < 4+size {
		return nil, data, nil
	}
	var frame metav1.WatchEvent
	if err := frame.Unmarshal(data[4 : 4+size]); err != nil {
		return nil, nil, fmt.Errorf("watch frame: %w", err)
	}
	object, err := decodeProtobuf(frame.Object.Raw)
	return map[string]any{"type": frame.Type, "object": object}, data[4+size:], err
}
