# docker build -t incseg . && docker run --rm -v "$PWD:/work" incseg extend models/mine --data newdata --out runs/bigger
# With a GPU: docker run --gpus all …; the page: docker run -p 7860:7860 … serve runs/mine --host 0.0.0.0
FROM python:3.12-slim
WORKDIR /opt/incseg
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY recipes recipes
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt '.[coco,export,parquet,serve]' \
 && useradd --create-home --uid 1000 incseg
USER incseg
WORKDIR /work
ENTRYPOINT ["incseg"]
CMD ["--help"]
