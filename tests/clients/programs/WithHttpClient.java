// A merchant's program: Java's HttpClient as it comes, which offers HTTP/2 with every first call.
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class WithHttpClient {
    private static final Pattern STATUS = Pattern.compile("\"status\":\\s*\"(\\w+)\"");

    private static String status(String json) {
        Matcher found = STATUS.matcher(json);
        return found.find() ? found.group(1) : "";
    }

    public static void main(String[] given) throws Exception {
        String base = given[0], order = given[1], key = given[2];
        String body = "{\"merchant_order_no\":\"" + order + "\",\"amount\":10000,\"currency\":\"USD\"}";
        HttpClient client = HttpClient.newHttpClient();
        StringBuilder told = new StringBuilder("[");
        for (int n = 0; n < 2; n++) {
            HttpRequest pay = HttpRequest.newBuilder(URI.create(base + "/v1/payments"))
                .timeout(Duration.ofSeconds(30))
                .header("Authorization", "Bearer sk_test_A")
                .header("Content-Type", "application/json")
                .header("Idempotency-Key", key)
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
            HttpResponse<String> paid = client.send(pay, HttpResponse.BodyHandlers.ofString());
            String knowledge = paid.headers().firstValue("safepost-knowledge").map(k -> "\"" + k + "\"").orElse("null");
            told.append("[").append(paid.statusCode()).append(",\"").append(status(paid.body())).append("\",");
            told.append(knowledge).append("],");
        }
        String number = URLEncoder.encode(order, StandardCharsets.UTF_8);
        HttpRequest ask = HttpRequest.newBuilder(URI.create(base + "/v1/payments?merchant_order_no=" + number))
            .header("Authorization", "Bearer sk_test_A")
            .build();
        HttpResponse<String> found = client.send(ask, HttpResponse.BodyHandlers.ofString());
        told.append("[").append(found.statusCode()).append(",\"").append(status(found.body())).append("\"]]");
        System.out.print(told);
    }
}
